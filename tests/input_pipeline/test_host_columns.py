"""Columns that hold no numbers, and stay on the host."""

from __future__ import annotations

import numpy as np
import pytest

from input_pipeline import Stack, make_source
from input_pipeline.host_columns import HostColumns


def batch(names, numbers):
    return {"name": names, "x": np.array(numbers)}, np.array(numbers)


def test_strings_are_taken_out_of_the_features():
    (features, labels), columns = HostColumns().take_out(batch(np.array(["a", "b"]), [1, 2]))
    assert list(features) == ["x"] and labels.tolist() == [1, 2]
    assert columns["name"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "names",
    [
        np.array(["a", "b"]),
        np.array([b"a", b"b"]),
        np.array(["a", None], object),
        np.array(["2020-01-01", "2021-01-01"], "M8[D]"),
        ["a", "b"],
        [b"a", b"b"],
    ],
)
def test_what_is_no_number_stays(names):
    _, columns = HostColumns().take_out(batch(names, [1, 2]))
    assert columns["name"].tolist() == np.array(names).tolist()


def test_features_that_are_no_dict_have_no_columns():
    pair = (np.array(["a"]), None)
    assert HostColumns().take_out(pair) == (pair, {})


def test_a_column_that_is_missing_in_a_later_batch_is_an_error_naming_it():
    columns = HostColumns()
    columns.take_out(batch(["a"], [1]))
    with pytest.raises(ValueError, match=r"features\['name'\] is missing"):
        columns.take_out(({"x": np.array([1])}, None))


def test_they_stay_beside_the_batches_that_they_came_with_without_padding():
    batches = [batch(["a", "b"], [1, 2]), batch(["c"], [3])]
    stack = make_source(batches, batch_size=2, host_columns=True).read(2)
    assert isinstance(stack, Stack)
    assert [columns["name"].tolist() for columns in stack.host_columns] == [["a", "b"], ["c"]]
    assert list(stack.features) == ["x"]


def test_a_column_of_another_length_is_an_error_naming_it():
    source = make_source([batch(["a"], [1, 2])], batch_size=2, host_columns=True)
    with pytest.raises(ValueError, match=r"features\['x'\] has 2, features\['name'\] has 1"):
        source.read(1)


def test_shuffled_rows_of_arrays_keep_their_strings():
    data = {"name": np.array(["n0", "n1", "n2"]), "x": np.arange(3)}
    stack = make_source(data, batch_size=2, host_columns=True).read(2)
    assert isinstance(stack, Stack)
    for rows, numbers, columns in zip(
        stack.rows, stack.features["x"], stack.host_columns, strict=True
    ):
        assert [f"n{number}" for number in numbers[:rows]] == columns["name"].tolist()
