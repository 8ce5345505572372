"""Positions of all processes in one checkpoint."""

from __future__ import annotations

import pytest

from estimator import input_positions
from input_pipeline import RegroupedInputError

A, B = {"kind": "files", "at": 1}, {"kind": "files", "at": 2}


@pytest.mark.parametrize(
    ("positions", "saved"),
    [([A], A), ([None], None), ([A, A, A], A), ([A, None], A), ([None, None], None)],
)
def test_one_position_of_all_goes_on_with_any_number(positions, saved):
    assert input_positions.joined(positions) == saved
    assert input_positions.of_process(saved, 3, 4) == saved


def test_positions_that_differ_go_on_each_on_its_process():
    saved = input_positions.joined([A, B])
    assert [input_positions.of_process(saved, index, 2) for index in range(2)] == [A, B]


@pytest.mark.parametrize("count", [1, 3])
def test_positions_that_differ_are_refused_by_another_number(count):
    saved = input_positions.joined([A, B])
    with pytest.raises(RegroupedInputError, match=f"by 2 processes.* and now by {count}"):
        input_positions.of_process(saved, 0, count)
