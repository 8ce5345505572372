"""Examples from Hugging Face datasets."""

from __future__ import annotations

import numpy as np
import pytest

from input_pipeline import Stack, make_source

datasets = pytest.importorskip("datasets")


def table():
    return datasets.Dataset.from_dict(
        {"x": [[float(n), n + 0.5] for n in range(5)], "n": list(range(5)), "name": list("abcde")}
    )


def read(source, count=9) -> Stack:
    stack = source.read(count)
    assert stack is not None
    return stack


def test_columns_become_a_dict_of_features():
    stack = read(make_source(table().remove_columns("name"), batch_size=2))
    np.testing.assert_array_equal(stack.features["n"][:3], [[0, 1], [2, 3], [4, 4]])
    np.testing.assert_array_equal(stack.features["x"][2], [[4, 4.5], [4, 4.5]])
    assert stack.rows.tolist() == [2, 2, 1] and stack.labels is None


def test_dtypes_are_those_of_the_columns():
    features = datasets.Features(
        {
            "image": datasets.Array2D((2, 2), "uint8"),
            "weights": datasets.List(datasets.Value("float16")),
        }
    )
    columns = {"image": np.ones((3, 2, 2), np.uint8), "weights": [[0.5, 1.0]] * 3}
    source = make_source(datasets.Dataset.from_dict(columns, features=features), batch_size=3)
    dtypes = {name: spec.dtype for name, spec in source.element_spec()[0].items()}
    assert dtypes == {"image": np.uint8, "weights": np.float16}


def test_a_position_is_found_at_once_and_holds_for_another_batch_size():
    source = make_source(table().select_columns("n"), batch_size=2)
    source.read(1)
    resumed = make_source(table().select_columns("n"), batch_size=3)
    resumed.seek(source.position())
    assert not resumed.seeks_by_reading
    assert resumed.num_batches() == 1
    assert read(resumed).features["n"][0].tolist() == [2, 3, 4]


def test_strings_are_refused_or_stay_on_the_host():
    with pytest.raises(ValueError, match=r"features\['name'\] holds strings"):
        make_source(table(), batch_size=2).read(1)
    stack = read(make_source(table(), batch_size=2, host_columns=True))
    names = [columns["name"].tolist() for columns in stack.host_columns]
    assert names == [["a", "b"], ["c", "d"], ["e"]]


def test_lists_of_different_lengths_are_an_error_with_the_way_out():
    ragged = datasets.Dataset.from_dict({"tokens": [[1], [2, 3]]})
    with pytest.raises(ValueError, match=r"features\['tokens'\].*pad arrays"):
        make_source(ragged, batch_size=2).read(1)


def test_an_iterable_dataset_is_read_in_batches():
    data = table().select_columns("n").to_iterable_dataset()
    source = make_source(data, batch_size=2)
    stack = read(source)
    assert stack.features["n"][:3].tolist() == [[0, 1], [2, 3], [4, 4]]
    resumed = make_source(data, batch_size=2)
    resumed.seek(stack.positions[1])
    assert read(resumed).features["n"][0].tolist() == [4, 4]


def test_a_dict_of_splits_is_an_error_naming_them():
    with pytest.raises(TypeError, match=r"splits \['test', 'train'\]"):
        make_source(datasets.DatasetDict({"train": table(), "test": table()}), batch_size=2)
