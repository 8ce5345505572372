"""Elements that must look like the first one."""

from __future__ import annotations

import collections

import jax
import numpy as np
import pytest

from input_pipeline.layout import Layout, split

Point = collections.namedtuple("Point", ["x", "y"])


def image_batch(rows=4, width=3, dtype: type = np.float32):
    return {"image": np.zeros((rows, 2, width), dtype)}, np.zeros(rows, np.int32)


def test_a_plain_tuple_of_two_is_features_and_labels():
    assert split((1, 2)) == (1, 2)


@pytest.mark.parametrize("element", [1, [1, 2], (1, 2, 3), {"a": 1}, Point(1, 2)])
def test_all_else_is_features(element):
    assert split(element) == (element, None)


def test_a_namedtuple_that_looks_like_the_pair_is_refused():
    pair = collections.namedtuple("Pair", ["features", "labels"])

    with pytest.raises(TypeError, match=r"namedtuple Pair.* plain tuple \(features, labels\)"):
        split(pair(1, 2))


def test_the_leaves_of_a_like_batch_come_back_as_arrays():
    layout = Layout.of(image_batch(rows=4), batched=True)
    image, label = layout.match(image_batch(rows=2), 1)
    assert image.shape == (2, 2, 3) and label.shape == (2,)


def test_the_element_spec_has_device_dtypes():
    layout = Layout.of(({"a": np.zeros((4, 7))}, np.zeros(4, np.int64)), batched=True)
    assert layout.element_spec(8) == (
        {"a": jax.ShapeDtypeStruct((8, 7), np.float32)},
        jax.ShapeDtypeStruct((8,), np.int32),
    )


def test_another_trailing_shape_is_an_error_naming_leaf_expected_got_and_batch():
    layout = Layout.of(image_batch(width=3), batched=True)
    message = (
        r"features\['image'\] of batch 5 .* "
        r"expected float32 \[batch, 2, 3\], got float32 \[4, 2, 9\]"
    )
    with pytest.raises(ValueError, match=message):
        layout.match(image_batch(width=9), 5)


def test_another_dtype_is_an_error_naming_leaf_expected_got_and_batch():
    layout = Layout.of(image_batch(), batched=True)
    with pytest.raises(ValueError, match=r"'image'\] of batch 2 .*float32 .*got uint8"):
        layout.match(image_batch(dtype=np.uint8), 2)


@pytest.mark.parametrize(
    "other",
    [
        ({"image": np.zeros((4, 2, 3), np.float32)}, None),
        ({"picture": np.zeros((4, 2, 3), np.float32)}, np.zeros(4, np.int32)),
        (np.zeros((4, 2, 3), np.float32), np.zeros(4, np.int32)),
    ],
)
def test_another_structure_is_an_error_naming_both_and_the_batch(other):
    layout = Layout.of(image_batch(), batched=True)
    with pytest.raises(ValueError, match=r"batch 3 .*expected features=\{'image': .*, got fea"):
        layout.match(other, 3)


def test_leaves_with_different_numbers_of_examples_are_both_named():
    features, _ = image_batch(rows=4)
    pair = (features, np.zeros(3, np.int32))
    layout = Layout.of(pair, batched=True)
    with pytest.raises(ValueError, match=r"batch 0 .*features\['image'\] has 4, labels has 3"):
        layout.match(pair, 0)


def test_a_scalar_in_a_batch_is_an_error_naming_it():
    with pytest.raises(ValueError, match="labels is a scalar"):
        Layout.of((np.zeros(4), 1.0), batched=True)


def test_a_scalar_in_a_later_batch_is_an_error_naming_it():
    layout = Layout.of((np.zeros(4), np.zeros(4)), batched=True)
    with pytest.raises(ValueError, match="labels is a scalar"):
        layout.match((np.zeros(4), np.float64(1)), 1)


def test_a_python_scalar_is_fine_in_an_example():
    layout = Layout.of(({"age": 3}, True), batched=False)
    assert layout.element_spec(2) == (
        {"age": jax.ShapeDtypeStruct((2,), np.int32)},
        jax.ShapeDtypeStruct((2,), np.bool_),
    )


def test_strings_are_an_error_naming_the_column():
    layout = Layout.of(({"city": np.array(["Bern", "Oslo"])}, None), batched=True)
    with pytest.raises(ValueError, match=r"features\['city'\] holds strings"):
        layout.element_spec(2)


def test_strings_of_other_lengths_are_alike():
    layout = Layout.of((np.array(["Bern", "Oslo"]), None), batched=True)
    (leaf,) = layout.match((np.array(["Kopenhagen"]), None), 1)
    assert leaf.tolist() == ["Kopenhagen"]


def test_what_is_no_array_is_an_error_that_says_what_it_is():
    with pytest.raises(ValueError, match=r"features\['train'\] is a set, not an array"):
        Layout.of(({"train": {1, 2}}, None), batched=True)


def test_no_array_at_all_is_an_error():
    with pytest.raises(ValueError, match="no array"):
        Layout.of(({}, None), batched=True)
