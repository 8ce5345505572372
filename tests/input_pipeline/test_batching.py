"""Stacking and padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.batching import Stacker, pad
from input_pipeline.layout import Layout


@given(st.integers(1, 20), st.integers(0, 20))
def test_padding_repeats_the_real_rows_in_a_cycle(rows, more):
    block = np.full((rows + more, 2), -1)
    block[:rows] = np.arange(2 * rows).reshape(rows, 2)
    pad(block, rows)
    expected = [[2 * (row % rows), 2 * (row % rows) + 1] for row in range(rows + more)]
    np.testing.assert_array_equal(block, expected)


def stacker_for(pair, *, batch_size=3, capacity=2):
    layout = Layout.of(pair, batched=True)
    return layout, Stacker(layout, batch_size=batch_size, capacity=capacity)


def test_batches_are_stacked_and_the_last_one_padded():
    full = ({"x": np.array([1.0, 2.0, 3.0])}, np.array([1, 2, 3]))
    partial = ({"x": np.array([4.0, 5.0])}, np.array([4, 5]))
    layout, stacker = stacker_for(full)
    stacker.add(layout.match(full, 0), {"at": 1}, {}, index=0)
    stacker.add(layout.match(partial, 1), {"at": 2}, {}, index=1)
    stack = stacker.stack()
    np.testing.assert_array_equal(stack.features["x"], [[1, 2, 3], [4, 5, 4]])
    np.testing.assert_array_equal(stack.labels, [[1, 2, 3], [4, 5, 4]])
    assert stack.features["x"].dtype == np.float32 and stack.labels.dtype == np.int32
    assert stack.rows.tolist() == [3, 2] and stack.rows.dtype == np.int32
    assert list(stack.positions) == [{"at": 1}, {"at": 2}]
    assert len(stack.host_columns) == 0


def test_the_arrays_have_the_capacity_that_was_asked_for():
    pair = (np.zeros((3, 5), np.float32), None)
    layout, stacker = stacker_for(pair, capacity=4)
    stacker.add(layout.match(pair, 0), {}, {}, index=0)
    stack = stacker.stack()
    assert stack.features.shape == (4, 3, 5) and stack.steps == 1 and stack.labels is None


def test_more_examples_than_the_batch_size_are_an_error_naming_both_and_the_batch():
    pair = (np.zeros(4), None)
    layout, stacker = stacker_for(pair)
    with pytest.raises(ValueError, match=r"Batch 7 .* has 4 examples, more than batch_size=3"):
        stacker.add(layout.match(pair, 7), {}, {}, index=7)


def test_a_value_that_does_not_fit_is_an_error_naming_the_leaf():
    pair = ({"id": np.array([2**40])}, None)
    layout, stacker = stacker_for(pair)
    with pytest.raises(ValueError, match=r"features\['id'\] holds 1099511627776"):
        stacker.add(layout.match(pair, 0), {}, {}, index=0)


def test_each_stack_has_memory_of_its_own():
    layout = Layout.of((np.zeros(3), None), batched=True)
    stacks = [Stacker(layout, batch_size=3, capacity=1).stack() for _ in range(2)]
    assert not np.shares_memory(stacks[0].features, stacks[1].features)


def test_columns_of_the_host_stay_beside_their_batch():
    pair = (np.zeros(2), None)
    layout, stacker = stacker_for(pair)
    names = {"name": np.array(["a", "b"])}
    stacker.add(layout.match(pair, 0), {}, names, index=0)
    assert list(stacker.stack().host_columns) == [names]
