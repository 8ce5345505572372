"""Batches from torch."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from input_pipeline import Stack, make_source
from tests.workers import context as workers_context

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

workers = pytest.mark.parametrize("workers", [0, 2])


class Ids(data.Dataset):
    """The ids 0 to 9, and their doubles. Raises `error` at the id 2 if there is one."""

    def __init__(self, error=None):
        self.error = error

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if self.error is not None and index == 2:
            raise self.error
        return index, index * 2


def read(source, count=99) -> Stack:
    stack = source.read(count)
    assert stack is not None
    return stack


def read_to_the_end(source):
    while source.read(9) is not None:
        pass


def batches_in(stack):
    return [row[:rows].tolist() for row, rows in zip(stack.features, stack.rows, strict=False)]


def loader(dataset, workers=0, **options):
    context = workers_context() if workers else None
    return data.DataLoader(dataset, num_workers=workers, multiprocessing_context=context, **options)


def shuffled(workers=0):
    generator = torch.Generator().manual_seed(4)
    return loader(Ids(), workers, batch_size=3, shuffle=True, generator=generator)


@workers
def test_batches_are_those_that_torch_gives_and_a_list_of_two_is_features_and_labels(workers):
    source = make_source(shuffled(workers), batch_size=3)
    stack = read(source)
    source.close()
    assert batches_in(stack) == [features.tolist() for features, _ in shuffled()]
    np.testing.assert_array_equal(stack.labels[:4], stack.features[:4] * 2)


@workers
def test_after_a_resume_at_any_batch_the_rest_is_as_if_uninterrupted(workers):
    source = make_source(shuffled(), batch_size=3)
    stack = read(source)
    batches = batches_in(stack)
    for stop in range(1, 4):
        resumed = make_source(shuffled(workers), batch_size=3)
        resumed.seek(stack.positions[stop - 1])
        assert resumed.num_batches() == 4 - stop
        assert batches_in(read(resumed)) == batches[stop:]
        resumed.close()
    assert source.seeks_by_reading


@workers
def test_an_error_in_the_dataset_of_the_user_is_raised(workers):
    source = make_source(loader(Ids(ValueError("bad record 17")), workers), batch_size=1)
    with pytest.raises(ValueError, match="bad record 17"):
        read_to_the_end(source)
    source.close()


@workers
def test_stop_iteration_out_of_the_dataset_of_the_user_is_an_error(workers):
    source = make_source(loader(Ids(StopIteration()), workers), batch_size=1)
    with pytest.raises(RuntimeError, match="StopIteration"):
        read_to_the_end(source)
    source.close()


def test_closing_ends_the_worker_processes():
    before = set(multiprocessing.active_children())
    source = make_source(loader(Ids(), workers=2), batch_size=1)
    source.read(1)
    assert len(set(multiprocessing.active_children()) - before) == 2
    source.close()
    assert not set(multiprocessing.active_children()) - before


def test_a_map_style_dataset_gives_examples():
    stack = read(make_source(Ids(), batch_size=4))
    assert batches_in(stack) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tensors_are_arrays_of_examples_with_their_dtypes():
    features = {"x": torch.arange(3).bfloat16(), "y": torch.ones(3, 2, requires_grad=True)}
    stack = read(make_source((features, torch.arange(3)), batch_size=3), 1)
    assert stack.features["x"].dtype.name == "bfloat16"
    np.testing.assert_array_equal(stack.features["x"].astype(np.float32), [[0, 1, 2]])
    np.testing.assert_array_equal(stack.features["y"], np.ones((1, 3, 2)))
    np.testing.assert_array_equal(stack.labels, [[0, 1, 2]])


def test_a_loader_with_another_batch_size_is_an_error_naming_both():
    with pytest.raises(ValueError, match="batch_size=4, but 8 is needed"):
        make_source(loader(Ids(), batch_size=4), batch_size=8)


def test_an_iterable_dataset_without_a_loader_is_an_error_with_the_way_out():
    class Endless(data.IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(TypeError, match="Wrap it in a DataLoader"):
        make_source(Endless(), batch_size=2)
