"""serving_input: the first dimension becomes the batch, the others and the dtypes are kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimator.export import TensorSpec, serving_input


@pytest.mark.parametrize("rows", [0, 1, 8])
def test_the_batch_of_the_example_arrays_does_not_count(rows):
    inputs = serving_input({"image": np.zeros((rows, 28, 28), np.uint8)})
    assert inputs.specs == {"image": TensorSpec((None, 28, 28), "uint8")}


@pytest.mark.parametrize(
    "leaf",
    [
        np.zeros((8, 3), np.float32),
        jnp.zeros((8, 3)),
        jax.ShapeDtypeStruct((8, 3), jnp.float32),
        TensorSpec((None, 3), "float32"),
    ],
)
def test_anything_with_a_shape_and_a_dtype_describes_a_feature(leaf):
    assert serving_input({"x": leaf}).specs == {"x": TensorSpec((None, 3), "float32")}


def test_64_bit_types_become_what_jax_makes_of_them():
    specs = serving_input({"ids": np.zeros(4, np.int64), "x": np.zeros((4, 2))}).specs
    for name, array in {"ids": np.zeros(4, np.int64), "x": np.zeros((4, 2))}.items():
        assert specs[name].dtype == jnp.asarray(array).dtype


def test_64_bit_types_are_kept_where_jax_keeps_them():
    with jax.enable_x64(True):
        specs = serving_input({"x": np.zeros((4, 2))}).specs
    assert specs["x"].dtype == np.float64


def test_features_are_put_together_again_from_their_names():
    features = {"text": [np.zeros((2, 5)), np.zeros((2, 6))], "age": np.zeros(2)}
    inputs = serving_input(features)
    assert inputs.features({"text/1": "one", "age": "age", "text/0": "zero"}) == {
        "text": ["zero", "one"],
        "age": "age",
    }


def test_features_that_are_one_array_are_called_input():
    inputs = serving_input(np.zeros((2, 5)))
    assert list(inputs.specs) == ["input"]
    assert inputs.features({"input": 7}) == 7


def test_preprocess_is_applied_to_the_features():
    inputs = serving_input({"x": np.zeros(2)}, preprocess=lambda f: {"y": f["x"] + 1})
    assert inputs.features({"x": 3}) == {"y": 4}


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        ({"name": np.array(["a", "b"])}, TypeError, "Feature 'name' has dtype <U1"),
        ({"blob": np.array([{}], object)}, TypeError, "Feature 'blob' has dtype object"),
        ({"day": np.array(["2020-01-01"], "M8[D]")}, TypeError, "Feature 'day' has dtype dat"),
        ({"x": {"y": np.float32(1)}}, ValueError, "Feature 'x/y' is a scalar"),
        ({"x": 3}, TypeError, "Feature 'x' is of type int"),
        ({}, ValueError, "features holds no arrays"),
    ],
)
def test_a_feature_that_cannot_be_fed_is_refused_by_name(features, error, message):
    with pytest.raises(error, match=message):
        serving_input(features)


def test_a_preprocess_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="preprocess must be a function, got dict"):
        serving_input({"x": np.zeros(2)}, preprocess={})  # pyright: ignore[reportArgumentType]
