"""What may go to the device, and what is narrowed to 32 bits."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

from input_pipeline.dtypes import narrow


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.int64, np.int32),
        (np.uint64, np.uint32),
        (np.float64, np.float32),
        (np.complex128, np.complex64),
    ],
)
def test_64_bits_become_32(given, expected):
    narrowed = narrow(np.array([1, 2, 3], given), "features")
    assert narrowed.dtype == expected
    np.testing.assert_array_equal(narrowed, [1, 2, 3])


@pytest.mark.parametrize(
    "dtype",
    [np.bool_, np.uint8, np.int8, np.int32, np.float16, np.float32, np.complex64]
    + [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn],
)
def test_other_dtypes_are_kept_without_a_copy(dtype):
    values = np.array([0, 1], dtype)
    assert narrow(values, "features") is values


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint64, np.complex128])
def test_64_bits_are_kept_where_jax_has_them(dtype):
    values = np.array([0, 2], dtype)
    jax.config.update("jax_enable_x64", True)
    try:
        assert narrow(values, "features") is values
    finally:
        jax.config.update("jax_enable_x64", False)


def test_values_at_the_border_of_32_bits_fit():
    border = np.array([-(2**31), 2**31 - 1])
    np.testing.assert_array_equal(narrow(border, "features"), border)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_an_integer_that_does_not_fit_is_an_error_that_names_it_and_the_way_out(value):
    with pytest.raises(ValueError, match=rf"features\['id'\] holds {value}.*jax_enable_x64"):
        narrow(np.array([1, value]), "features['id']")


def test_a_number_that_would_become_infinite_is_an_error():
    with pytest.raises(ValueError, match=r"labels holds a value of size 1e\+300.*jax_enable_x64"):
        narrow(np.array([np.inf, np.nan, -1e300]), "labels")


def test_infinity_and_nan_are_narrowed_as_they_are():
    values = np.array([np.inf, -np.inf, np.nan, 1.5])
    np.testing.assert_array_equal(narrow(values, "features"), values.astype(np.float32))


def test_a_foreign_byte_order_becomes_the_native_one():
    narrowed = narrow(np.array([1, 2], ">f4"), "features")
    assert narrowed.dtype.isnative
    np.testing.assert_array_equal(narrowed, [1, 2])


@pytest.mark.parametrize(
    ("values", "what", "fix"),
    [
        (np.array(["a", "b"]), "strings", "integer ids"),
        (np.array(["a"], np.dtypes.StringDType()), "strings", "integer ids"),
        (np.array([b"a"]), "bytes", "integer ids"),
        (np.array([1, None]), "Python objects", "pad arrays"),
        (np.array(["2020-01-01"], "M8[D]"), "dates", "seconds"),
        (np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]), "records", "dict of arrays"),
        (np.array([1.0], np.longdouble), "float128", "float32"),
    ],
)
def test_what_is_no_number_is_an_error_that_names_the_leaf_and_the_fix(values, what, fix):
    with pytest.raises(ValueError, match=rf"features\['name'\] holds .*{what}.*{fix}"):
        narrow(values, "features['name']")
