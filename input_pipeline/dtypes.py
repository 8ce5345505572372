"""What may go to the device: arrays of numbers, 64 bits narrowed to 32 when nothing is lost."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

_X64 = "or keep 64 bits with jax.config.update('jax_enable_x64', True)"

_IN_PREDICT = "Only predict takes such columns of a features dict, and yields them as they are."


def to_numpy(leaf: Any) -> np.ndarray:
    """Returns `leaf` (an array of any library, a number, a string) as a numpy array, without a
    copy where it has numpy's memory."""
    return leaf if type(leaf) is np.ndarray else np.asarray(leaf)


def is_numeric(dtype: np.dtype) -> bool:
    """Says whether jax has arrays of `dtype`, in any mode."""
    if dtype.kind == "V":  # bfloat16 and its like, but also records
        return jax.dtypes.issubdtype(dtype, np.number)
    return dtype.itemsize <= {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}.get(dtype.kind, -1)


def device_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Returns the dtype that values of `dtype` have on the device.

    Args:
      dtype: of the array as the user gave it.
      name: of the leaf, as `features['image']`, for the error.

    Raises:
      ValueError: the values are no numbers.
    """
    if not is_numeric(dtype):
        raise ValueError(
            f"{name} holds {_describe(dtype)}, which cannot go to the device. {_fix(dtype)}"
        )
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))


def assign(target: np.ndarray, values: np.ndarray, name: str) -> None:
    """Copies `values` into `target`, which may have the narrowed dtype and an equal shape.

    Raises:
      ValueError: a value does not fit into the dtype of `target`.
    """
    if values.dtype == target.dtype:
        target[...] = values
    elif target.dtype.kind in "iu":
        target[...] = values
        if not np.array_equal(target, values):
            outside = values[target != values].flat[0]
            raise ValueError(
                f"{name} holds {outside}, which does not fit into {target.dtype} "
                f"(got {values.dtype}). Use smaller values, {_X64}."
            )
    else:
        try:
            with np.errstate(over="raise"):
                target[...] = values
        except FloatingPointError:
            largest = np.max(np.abs(values), where=np.isfinite(values), initial=0)
            raise ValueError(
                f"{name} holds a value of size {largest:g}, which becomes infinite as "
                f"{target.dtype} (got {values.dtype}). Scale the data, {_X64}."
            ) from None


def narrow(values: np.ndarray, name: str) -> np.ndarray:
    """Returns `values` with their dtype on the device: the same array where that is its own.

    Raises:
      ValueError: the values are no numbers, or do not fit.
    """
    dtype = device_dtype(values.dtype, name)
    if dtype == values.dtype:
        return values
    narrowed = np.empty(values.shape, dtype)
    assign(narrowed, values, name)
    return narrowed


def _describe(dtype: np.dtype) -> str:
    words = {"U": "strings", "T": "strings", "S": "bytes", "O": "Python objects"}
    words |= {"M": "dates", "m": "time spans", "V": "records"}
    return f"{words.get(dtype.kind, 'values')} (dtype {dtype})"


def _fix(dtype: np.dtype) -> str:
    match dtype.kind:
        case "U" | "T" | "S":
            return f"Leave it out of what input_fn returns, or map it to integer ids. {_IN_PREDICT}"
        case "M" | "m":
            return "Turn it into a number, such as seconds since a date, or leave it out."
        case "V":
            return "Return its fields as a dict of arrays."
        case "O":
            return (
                "Map strings to integer ids, pad arrays of different lengths to one, cast numbers "
                f"with astype; or leave it out of what input_fn returns. {_IN_PREDICT}"
            )
    return "Cast it to a dtype that jax has, such as float32."
