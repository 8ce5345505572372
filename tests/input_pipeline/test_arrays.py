"""Batches from arrays in memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline import PositionError, Stack
from input_pipeline.arrays import ArraySource
from input_pipeline.columns import Columns
from input_pipeline.cuts import Cuts
from input_pipeline.order import Order, Shuffle


def ids(num_examples):
    return np.arange(num_examples, dtype=np.int32)


def source_of(pair, *, steps=(), epochs: int | None = 1, **cuts):
    columns = Columns.of(pair)
    return ArraySource(columns, Order(len(columns), steps, epochs), Cuts(**cuts))


def read(source, count, **options) -> Stack:
    stack = source.read(count, **options)
    assert stack is not None
    return stack


def batches_of(stack):
    """Returns the real examples of each batch of a stack of ids."""
    return [row[:rows].tolist() for row, rows in zip(stack.features, stack.rows, strict=False)]


def test_batches_come_in_order_and_the_last_one_is_padded_in_a_cycle():
    source = source_of((ids(8), None), size=3)
    stack = read(source, 5)
    assert stack.features[:3].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 6]]
    assert stack.rows.tolist() == [3, 3, 2]
    assert stack.features.shape == (5, 3)
    assert source.read(1) is None


def test_features_and_labels_of_any_dtype_and_shape_keep_their_rows_together():
    features = {
        "image": np.arange(5 * 6, dtype=np.uint8).reshape(5, 2, 3),
        "nested": (np.arange(5).astype(ml_dtypes.bfloat16), np.array([True, False] * 2 + [True])),
    }
    labels = np.arange(5, dtype=np.int64)
    stack = read(source_of((features, labels), steps=(Shuffle(0),), size=2), 3)
    order = np.random.default_rng([0, 0]).permutation(5)
    order = np.append(order, order[4]).reshape(3, 2)
    np.testing.assert_array_equal(stack.features["image"], features["image"][order])
    np.testing.assert_array_equal(stack.features["nested"][0], features["nested"][0][order])
    np.testing.assert_array_equal(stack.features["nested"][1], features["nested"][1][order])
    np.testing.assert_array_equal(stack.labels, order)
    assert stack.labels.dtype == np.int32


def test_batches_go_over_the_border_of_epochs():
    stack = read(source_of((ids(5), None), epochs=3, size=4), 9)
    assert batches_of(stack) == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1], [2, 3, 4]]


def test_batches_end_with_the_epoch_where_asked():
    stack = read(source_of((ids(5), None), epochs=2, size=4, segment=5), 9)
    assert batches_of(stack) == [[0, 1, 2, 3], [4], [0, 1, 2, 3], [4]]


def test_arrays_that_are_not_contiguous_are_read_right():
    wide = np.arange(24).reshape(4, 6)
    stack = read(source_of((wide.T, wide[:, ::-1].T), steps=(Shuffle(0),), size=6), 1)
    order = np.random.default_rng([0, 0]).permutation(6)
    np.testing.assert_array_equal(stack.features[0], wide.T[order])
    np.testing.assert_array_equal(stack.labels[0], wide[:, ::-1].T[order])


def test_writing_into_a_stack_leaves_the_data_alone():
    data = ids(4)
    read(source_of((data, None), size=4), 1).features[...] = -1
    assert data.tolist() == [0, 1, 2, 3]


def test_each_stack_has_memory_of_its_own():
    source = source_of((ids(4), None), size=2)
    first, second = read(source, 1), read(source, 1)
    assert not np.shares_memory(first.features, second.features)


def test_the_arrays_have_the_capacity_that_was_asked_for():
    stack = read(source_of((ids(4), None), size=2), 1, capacity=7)
    assert stack.features.shape == (7, 2) and stack.steps == 1


@given(
    num_examples=st.integers(1, 20),
    size=st.integers(1, 8),
    epochs=st.integers(1, 3),
    per_epoch=st.booleans(),
    drop_remainder=st.booleans(),
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    data=st.data(),
)
def test_after_a_resume_at_any_batch_the_rest_is_as_if_uninterrupted(
    num_examples, size, epochs, per_epoch, drop_remainder, counts, data
):
    def make():
        return source_of(
            (ids(num_examples), None),
            steps=(Shuffle(4),),
            epochs=epochs,
            size=size,
            segment=num_examples if per_epoch else None,
            drop_remainder=drop_remainder,
        )

    whole = make().read(100)
    expected = [] if whole is None else batches_of(whole)
    assert make().num_batches() == len(expected)

    source, got, positions = make(), [], [make().position()]
    for count in counts:
        if (stack := source.read(count)) is not None:
            got += batches_of(stack)
            positions += list(stack.positions)
    assert got == expected[: len(got)]

    stop = data.draw(st.integers(0, len(got)))
    resumed = make()
    resumed.seek(positions[stop])
    assert resumed.num_batches() == len(expected) - stop
    rest = resumed.read(100)
    assert ([] if rest is None else batches_of(rest)) == expected[stop:]


def test_positions_can_be_sliced_and_the_last_is_that_of_the_source():
    source = source_of((ids(10), None), size=2)
    positions = read(source, 4).positions
    assert list(positions[1:3]) == [positions[1], positions[2]]
    assert positions[-1] == source.position()


def test_the_position_of_other_data_is_refused():
    position = source_of((ids(10), None), size=2).position()
    with pytest.raises(PositionError, match="num_examples=10, this input has 11"):
        source_of((ids(11), None), size=2).seek(position)


def test_another_batch_size_goes_on_at_the_same_example():
    source = source_of((ids(10), None), size=2)
    source.read(2)
    other = source_of((ids(10), None), size=3)
    other.seek(source.position())
    assert batches_of(other.read(9)) == [[4, 5, 6], [7, 8, 9]]


def test_arrays_of_different_lengths_are_both_named():
    with pytest.raises(ValueError, match=r"features\['x'\] has 4, labels has 5"):
        Columns.of(({"x": np.zeros(4)}, np.zeros(5)))


def test_no_rows_give_no_batch():
    source = source_of((np.zeros((0, 3)), None), size=2, epochs=None)
    assert source.element_spec() == (None, None)
    assert source.num_batches() == 0
    assert source.read(1) is None


def test_an_endless_source_has_no_number_of_batches():
    assert source_of((ids(3), None), epochs=None, size=2).num_batches() is None


def test_no_more_is_read_than_the_arrays_can_hold():
    stack = read(source_of((ids(6), None), size=2), 5, capacity=1)
    assert batches_of(stack) == [[0, 1]]


def test_features_without_elements_come_beside_others():
    stack = read(source_of(({"id": ids(5), "none": np.zeros((5, 0))}, None), size=2), 3)
    assert stack.features["none"].shape == (3, 2, 0)
    assert stack.features["id"].tolist() == [[0, 1], [2, 3], [4, 4]]
