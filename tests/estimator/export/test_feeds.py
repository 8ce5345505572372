"""Features for a loaded model are found by name, cast where nothing is lost, or refused."""

import collections
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from estimator.export.feeds import check_feeds
from estimator.export.tensor_spec import TensorSpec

Pair = collections.namedtuple("Pair", ["left", "right"])


def feed(value, shape=(None,), dtype="float32"):
    feeds, _ = check_feeds({"x": value}, {"x": TensorSpec(shape, dtype)}, "serving_default")
    return feeds["x"]


@pytest.mark.parametrize(
    "features",
    [
        {"text": {"ids": [[1, 2]], "size": [2]}, "pair": (np.ones((1, 1)), [[3.0]])},
        {"text/ids": [[1, 2]], "text/size": [2], "pair/0": np.ones((1, 1)), "pair/1": [[3.0]]},
        {"text": {"ids": [[1, 2]], "size": [2]}, "pair": [np.ones((1, 1)), [[3.0]]]},
    ],
)
def test_nested_and_flat_features_feed_the_same_inputs(features):
    specs = {
        "pair/0": TensorSpec((None, 1), "float32"),
        "pair/1": TensorSpec((None, 1), "float32"),
        "text/ids": TensorSpec((None, 2), "int32"),
        "text/size": TensorSpec((None,), "int32"),
    }
    feeds, rows = check_feeds(features, specs, "s")
    assert rows == 1
    assert {name: array.tolist() for name, array in feeds.items()} == {
        "pair/0": [[1]],
        "pair/1": [[3]],
        "text/ids": [[1, 2]],
        "text/size": [2],
    }
    assert {name: array.dtype for name, array in feeds.items()} == {
        name: spec.dtype for name, spec in specs.items()
    }


def test_named_tuples_are_fed_by_the_names_of_their_fields():
    specs = {name: TensorSpec((None,), "int32") for name in ("left", "right")}
    feeds, _ = check_feeds(Pair([1], [2]), specs, "s")
    assert (feeds["left"].tolist(), feeds["right"].tolist()) == ([1], [2])


@pytest.mark.parametrize(
    "features", [np.ones((2, 3)), [[1, 1, 1], [1, 1, 1]], {"input": np.ones((2, 3))}]
)
def test_a_model_of_one_unnamed_array_is_fed_with_it(features):
    feeds, rows = check_feeds(features, {"input": TensorSpec((None, 3), "float32")}, "s")
    assert rows == 2
    np.testing.assert_array_equal(feeds["input"], np.ones((2, 3)))


def test_numpy_arrays_are_cast_exactly_where_jax_narrows_or_numpy_calls_it_safe():
    dtypes = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
    for source, target in itertools.product(dtypes, dtypes):
        if target in ("int64", "float64"):  # no feature has one without jax_enable_x64
            continue
        narrowed = {"int64": "int32", "float64": "float32"}.get(source, source)
        value = np.ones(2, source)
        if np.can_cast(narrowed, target):
            assert feed(value, dtype=target).dtype == target
        else:
            with pytest.raises(TypeError, match=f"'x' has dtype {source}.*{target}"):
                feed(value, dtype=target)


@pytest.mark.parametrize(
    ("value", "dtype", "accepted"),
    [
        ([1, 2], "int8", True),
        ([1, 2], "bfloat16", True),
        ([0.5, 2], "bfloat16", True),
        ([True, False], "bool", True),
        ([1, 2], "complex64", True),
        ([0.5, 2], "int32", False),
        ([True, False], "int32", False),
        ([1, 0], "bool", False),
        ([1j], "float32", False),
        ([], "int32", True),
        (3 * [np.float32(0.5)], "bfloat16", True),
    ],
)
def test_python_numbers_are_cast_by_their_kind(value, dtype, accepted):
    if accepted:
        array = feed(value, dtype=dtype)
        assert array.dtype == jnp.dtype(dtype)
        assert array.tolist() == value
    else:
        with pytest.raises(TypeError, match="Only casts that lose nothing are made"):
            feed(value, dtype=dtype)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.array([2**31]), "int32"), ([300], "uint8"), ([-1], "uint8"), ([-(2**40)], "int32")],
)
def test_an_int_that_does_not_fit_is_refused_rather_than_wrapped(value, dtype):
    with pytest.raises(ValueError, match=rf"holds values from {value[0]} to .* fit into {dtype}"):
        feed(value, dtype=dtype)


def test_the_largest_ints_that_fit_are_fed():
    limits = np.iinfo(np.int32)
    assert feed(np.array([limits.min, limits.max]), dtype="int32").tolist() == [
        limits.min,
        limits.max,
    ]


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        (
            {"y": np.ones((2, 3)), "z": np.ones(2)},
            ValueError,
            r"signature 'served': missing \['n', 'x'\], unexpected \['y', 'z'\]; expected "
            r"{n: int32\[batch\], x: float32\[batch, 3\]}",
        ),
        ({"x": np.ones((2, 3))}, ValueError, r"missing \['n'\]; expected"),
        (np.ones((2, 3)), ValueError, r"missing \['n', 'x'\], unexpected \['input'\]"),
        (
            {"x": np.ones(3), "n": [1]},
            ValueError,
            r"'x' has the shape \[3\], and expected is float32\[batch, 3\]",
        ),
        ({"x": np.ones((2, 4)), "n": [1, 2]}, ValueError, r"'x' has the shape \[2, 4\]"),
        ({"x": np.ones((2, 3, 1)), "n": [1, 2]}, ValueError, r"'x' has the shape \[2, 3, 1\]"),
        (
            {"x": np.ones((2, 3)), "n": [1, 2, 3]},
            ValueError,
            r"differ in their numbers of rows: {'n': 3, 'x': 2}",
        ),
        ({"x": [["a"] * 3], "n": [1]}, TypeError, r"'x' has dtype <U1, not numbers"),
        ({"x": [[1.0, 2], [3]], "n": [1, 2]}, ValueError, r"'x' is no array: .*inhomogeneous"),
        ({"x": {"deep": 1}, "n": [1]}, TypeError, r"'x' has dtype object, not numbers"),
    ],
)
def test_features_that_do_not_fit_are_refused_by_name(features, error, message):
    specs = {"n": TensorSpec((None,), "int32"), "x": TensorSpec((None, 3), "float32")}
    with pytest.raises(error, match=message):
        check_feeds(features, specs, "served")


def test_arrays_that_already_fit_are_not_copied():
    array = np.ones(2, np.float32)
    assert feed(array) is array


def test_numbers_that_are_too_large_are_refused_rather_than_made_infinite():
    with pytest.raises(ValueError, match=r"'x' holds numbers that are too large for float32"):
        feed(np.full(2, 1e300))
    assert np.isinf(feed(np.array([np.inf]))).all()
