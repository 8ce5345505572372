"""Batches whose examples lie along another dimension than the first."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from input_pipeline import BatchAxes, Dataset, Stack, make_source

AXES = {"features/image": 2, "labels": 1}


def batch(rows, first=0):
    """Features and labels whose examples lie along dimension 2, 0 and 1."""
    numbers = np.arange(first, first + rows, dtype=np.float32)
    image = np.array(np.broadcast_to(numbers, (3, 4, rows)))
    return {"image": image, "id": numbers}, np.stack([numbers, -numbers])


def batches(*rows):
    first = 0
    for count in rows:
        yield batch(count, first)
        first += count


def check(stack, rows):
    assert isinstance(stack, Stack)
    assert stack.rows.tolist() == rows
    at = 0
    for step, count in enumerate(rows):
        numbers = np.arange(at, at + count)
        image = stack.features["image"][step, :count]
        np.testing.assert_array_equal(image, np.broadcast_to(numbers[:, None, None], image.shape))
        assert image.shape == (count, 3, 4)
        np.testing.assert_array_equal(stack.labels[step, :count], np.stack([numbers, -numbers], 1))
        at += count


@pytest.mark.parametrize(
    "data",
    [
        lambda: batch(5),
        lambda: batches(2, 2, 1),
        lambda: list(batches(2, 2, 1)),
        lambda: lambda: batches(2, 2, 1),
    ],
    ids=["arrays", "generator", "list", "function"],
)
def test_the_batch_is_moved_to_the_front_in(data):
    source = make_source(data(), batch_size=2, batch_axis=AXES)
    assert source.element_spec()[0]["image"].shape == (2, 3, 4)
    check(source.read(9), [2, 2, 1])


def test_batches_of_a_library_are_moved_too():
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader([*batches(2, 2, 1)], batch_size=None)
    check(make_source(loader, batch_size=2, batch_axis=AXES).read(9), [2, 2, 1])
    tensors = jax.tree.map(torch.from_numpy, batch(5))
    check(make_source(tensors, batch_size=2, batch_axis=AXES).read(9), [2, 2, 1])


def test_examples_of_a_dataset_are_batched_in_front():
    dataset = Dataset.from_arrays({"image": np.zeros((5, 3, 4))})
    source = make_source(dataset, batch_size=2, batch_axis=AXES)
    assert source.element_spec()[0]["image"].shape == (2, 3, 4)


def test_positions_are_those_of_the_input_itself():
    source = make_source(list(batches(2, 2, 1)), batch_size=2, batch_axis=AXES)
    plain = make_source(list(batches(2, 2, 1)), batch_size=2)
    assert source.position() == plain.position() and source.num_batches() == 3
    source.seek(source.read(1).positions[0])
    assert source.read(1).features["id"].tolist() == [[2, 3]]


def test_moving_to_the_front_copies_nothing():
    pair = batch(4)
    (features, labels) = BatchAxes(AXES).to_front(pair)
    assert np.shares_memory(features["image"], pair[0]["image"])
    assert np.shares_memory(labels, pair[1])
    assert features["id"] is pair[0]["id"]


def test_restoring_gives_what_was_moved():
    pair = jax.tree.map(jnp.asarray, batch(4))
    moved = jax.tree.map(jnp.asarray, BatchAxes(AXES).to_front(batch(4)))
    jax.tree.map(np.testing.assert_array_equal, BatchAxes(AXES).restored(moved), pair)


def test_a_dimension_that_is_not_there_is_an_error_naming_the_tensor():
    with pytest.raises(ValueError, match=r"dimension 2 of features/image.*shape \[3, 4\]"):
        make_source({"image": np.zeros((3, 4))}, batch_size=2, batch_axis=AXES)
