"""Examples from pandas DataFrames."""

from __future__ import annotations

import numpy as np
import pytest

from input_pipeline import Stack, make_source

pandas = pytest.importorskip("pandas")


def frame():
    return pandas.DataFrame(
        {"x": np.arange(3.0), "n": np.arange(3), "name": ["a", "b", "c"]}, index=[7, 8, 9]
    )


def read(source, count=9) -> Stack:
    stack = source.read(count)
    assert stack is not None
    return stack


def test_columns_become_a_dict_of_features():
    stack = read(make_source(frame()[["x", "n"]], batch_size=2))
    assert stack.features["x"][:2].tolist() == [[0, 1], [2, 2]]
    assert stack.features["n"].dtype == np.int32 and stack.labels is None


def test_a_frame_and_a_column_are_features_and_labels():
    stack = read(make_source((frame()[["x"]], frame()["n"]), batch_size=3), 1)
    assert stack.features["x"].tolist() == stack.labels.tolist() == [[0, 1, 2]]


def test_columns_may_be_leaves_of_a_dict():
    stack = read(make_source({"a": frame()["x"]}, batch_size=3), 1)
    assert stack.features["a"].tolist() == [[0, 1, 2]]


def test_strings_are_refused_or_stay_on_the_host():
    with pytest.raises(ValueError, match=r"features\['name'\].*Map strings"):
        make_source(frame(), batch_size=2)
    stack = read(make_source(frame(), batch_size=2, host_columns=True))
    assert [names["name"].tolist() for names in stack.host_columns] == [["a", "b"], ["c"]]
