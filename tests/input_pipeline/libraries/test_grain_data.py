"""Batches from grain, which are resumed by its own iterators' state."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from input_pipeline import PositionError, QueueClosed, RegroupedInputError, Stack, make_source

grain = pytest.importorskip("grain")


class Ids:
    """A random access source whose repr holds its address, as is the default."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return np.int32(index)


def map_dataset():
    return grain.MapDataset.source(Ids()).shuffle(seed=3).repeat(3).batch(2)


def iter_dataset():
    ids = grain.MapDataset.source(Ids()).shuffle(seed=3).repeat(3).to_iter_dataset()
    return ids.filter(lambda value: value != 4).batch(2)


def mixed():
    ids = grain.MapDataset.source(Ids()).shuffle(seed=3).repeat(3)
    others = ids.map(lambda value: value + 100)
    return grain.MapDataset.mix([ids, others], [0.5, 0.5]).to_iter_dataset().batch(2)


def loader():
    sampler = grain.samplers.IndexSampler(
        10, grain.sharding.NoSharding(), shuffle=True, num_epochs=3, seed=3
    )
    return grain.DataLoader(
        data_source=Ids(), sampler=sampler, operations=[grain.transforms.Batch(2)], worker_count=0
    )


every_kind = pytest.mark.parametrize("make", [map_dataset, iter_dataset, mixed, loader])


def read(source, count=99) -> Stack:
    stack = source.read(count)
    assert stack is not None
    return stack


def read_to_the_end(source):
    while source.read(9) is not None:
        pass


def batches_in(stack):
    return [row[:rows].tolist() for row, rows in zip(stack.features, stack.rows, strict=False)]


@every_kind
def test_batches_are_those_that_grain_gives(make):
    source = make_source(make(), batch_size=2)
    assert batches_in(read(source)) == [batch.tolist() for batch in make()]
    assert source.read(1) is None
    source.close()


@every_kind
def test_after_a_resume_at_any_batch_the_rest_is_as_if_uninterrupted(make):
    source = make_source(make(), batch_size=2)
    start = source.position()
    stack = read(source)
    source.close()
    batches = batches_in(stack)
    for stop, position in enumerate([start, *stack.positions][:-1]):
        saved = json.loads(json.dumps(position))
        resumed = make_source(make(), batch_size=2)
        resumed.seek(saved)
        assert batches_in(read(resumed)) == batches[stop:]
        resumed.close()


@every_kind
def test_batches_that_were_prefetched_do_not_count_as_read(make):
    source = make_source(make(), batch_size=2)
    source.element_spec()
    first = batches_in(read(source, 1))
    resumed = make_source(make(), batch_size=2)
    resumed.seek(source.position())
    assert first + batches_in(read(resumed, 1)) == [batch.tolist() for batch in make()][:2]
    source.close()
    resumed.close()


def test_features_and_labels_keep_their_structure():
    data = grain.MapDataset.source(Ids()).map(lambda value: ({"id": value}, value * 2)).batch(5)
    source = make_source(data, batch_size=5)
    stack = read(source)
    source.close()
    np.testing.assert_array_equal(stack.labels[:2], stack.features["id"][:2] * 2)


def fail(error):
    def function(value):
        if value == 2:
            raise error
        return value

    return grain.MapDataset.source(Ids()).map(function).batch(1)


def test_an_error_in_a_function_of_the_user_is_raised():
    source = make_source(fail(ValueError("bad record 17")), batch_size=1)
    with pytest.raises(ValueError, match="bad record 17"):
        read_to_the_end(source)
    source.close()


def test_stop_iteration_out_of_a_function_of_the_user_is_an_error():
    source = make_source(fail(StopIteration()), batch_size=1)
    with pytest.raises(RuntimeError, match="StopIteration"):
        read_to_the_end(source)
    source.close()


def test_examples_that_are_not_batched_are_an_error():
    source = make_source(grain.MapDataset.source(Ids()), batch_size=2)
    with pytest.raises(ValueError, match="features is a scalar, and has no batch dimension"):
        source.read(1)
    source.close()


def test_closing_ends_the_threads():
    before = set(threading.enumerate())
    source = make_source(map_dataset(), batch_size=2)
    source.read(1)
    source.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
    assert not set(threading.enumerate()) - before
    with pytest.raises(QueueClosed):
        source.read(1)


def test_the_position_of_another_kind_of_input_is_refused():
    with pytest.raises(PositionError, match="kind 'batches'"):
        make_source(loader(), batch_size=2).seek({"kind": "batches", "batches": 3})


def test_the_position_of_another_loader_is_refused():
    source = make_source(loader(), batch_size=2)
    source.read(1)
    other = grain.DataLoader(
        data_source=Ids(),
        sampler=grain.samplers.SequentialSampler(10),
        operations=[grain.transforms.Batch(2)],
        worker_count=0,
    )
    resumed = make_source(other, batch_size=2)
    resumed.seek(source.position())
    with pytest.raises(PositionError, match="sampler"):
        resumed.read(1)
    source.close()
    resumed.close()


@pytest.fixture
def parsed_flags():
    # Grain's worker processes read absl flags, which a script has parsed with absl.app.run.
    flags = pytest.importorskip("absl.flags")
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


@pytest.mark.slow
def test_worker_processes_give_the_same_batches_before_and_after_a_resume(parsed_flags):
    # Of grain's own numbers, so that a worker need not import this module and what it imports.
    batches = grain.MapDataset.range(10).shuffle(seed=3).repeat(3).batch(2)

    def with_a_worker():
        options = grain.MultiprocessingOptions(num_workers=1)
        return make_source(batches.to_iter_dataset().mp_prefetch(options), batch_size=2)

    source = with_a_worker()
    stack = read(source, 4)
    source.close()
    assert batches_in(stack) == [batch.tolist() for batch in batches][:4]
    resumed = with_a_worker()
    resumed.seek(stack.positions[1])
    assert batches_in(read(resumed, 2)) == batches_in(stack)[2:]
    resumed.close()


def test_the_position_at_another_batch_size_is_refused():
    source = make_source(map_dataset(), batch_size=2)
    read(source, 3)
    with pytest.raises(RegroupedInputError, match=r"batches of 2 .* in batches of 4"):
        make_source(map_dataset(), batch_size=4).seek(source.position())
