"""Checks the features that an exported model is called with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from estimator.export.serving_input import ONLY_INPUT
from estimator.export.tensor_spec import TensorSpec, is_numeric, narrow

_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def check_feeds(
    features: Any, specs: Mapping[str, TensorSpec], signature: str
) -> tuple[dict[str, np.ndarray], int]:
    """Turns features into the arrays that `specs` ask for.

    Args:
      features: arrays or nested lists by name; nested as the features were on export, or flat,
        by names such as "text/ids".
      specs: name -> spec `[batch, ...]`.
      signature: name of the signature, for errors.

    Returns:
      Name -> array, and the number of rows.

    Raises:
      TypeError: a dtype that cannot be cast without loss.
      ValueError: names that are missing or not expected, another rank or shape, or unequal
        numbers of rows.
    """
    given = dict(_by_name(features, "", specs))
    if given.keys() != specs.keys():
        wrong = [
            f"{what} {sorted(names)}"
            for what, names in (
                ("missing", specs.keys() - given.keys()),
                ("unexpected", given.keys() - specs.keys()),
            )
            if names
        ]
        expected = ", ".join(f"{name}: {spec}" for name, spec in specs.items())
        raise ValueError(
            f"Features of signature {signature!r}: {', '.join(wrong)}; expected {{{expected}}}."
        )
    feeds = {
        name: _check_shape(name, _cast(name, given[name], spec), spec)
        for name, spec in specs.items()
    }
    rows = {name: len(feed) for name, feed in feeds.items()}
    if len(set(rows.values())) > 1:
        raise ValueError(
            f"Features of signature {signature!r} differ in their numbers of rows: {rows}. "
            "Every feature needs one row for every example."
        )
    return feeds, next(iter(rows.values()))


def _by_name(node: Any, name: str, specs: Mapping[str, TensorSpec]) -> Iterator[tuple[str, Any]]:
    """Yields the name and value of every feature. Names, not types, say where a feature
    begins: lists may hold features, and may be data."""
    below = f"{name}/" if name else ""
    if name not in specs and any(other.startswith(below) for other in specs):
        if isinstance(node, Mapping):
            items = node.items()
        elif isinstance(node, tuple) and (fields := getattr(node, "_fields", None)):
            items = zip(fields, node, strict=True)
        elif isinstance(node, list | tuple) and (name or ONLY_INPUT not in specs):
            items = enumerate(node)
        else:
            items = None
        if items is not None:
            for key, child in items:
                yield from _by_name(child, f"{below}{key}", specs)
            return
    yield name or ONLY_INPUT, node


def _cast(name: str, value: Any, spec: TensorSpec) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:  # nested lists of unequal lengths
        raise ValueError(f"Feature {name!r} is no array: {error}. Expected {spec}.") from error
    if array.dtype == spec.dtype:
        return array
    if not is_numeric(array.dtype):
        raise TypeError(f"Feature {name!r} has dtype {array.dtype}, not numbers. Expected {spec}.")
    if not _castable(array, spec.dtype, weak=not hasattr(value, "dtype")):
        raise TypeError(
            f"Feature {name!r} has dtype {array.dtype}, and expected is {spec}. Only casts that "
            f"lose nothing are made; if you mean it, pass x.astype({spec.dtype.name!r})."
        )
    if array.size and jnp.issubdtype(spec.dtype, jnp.integer):
        limits = jnp.iinfo(spec.dtype)
        low, high = array.min(), array.max()
        if low < limits.min or high > limits.max:
            raise ValueError(
                f"Feature {name!r} holds values from {low} to {high}, which do not fit into "
                f"{spec.dtype.name} of the expected {spec}."
            )
    with np.errstate(over="ignore"):  # looked for right here
        cast = array.astype(spec.dtype)
    if jnp.issubdtype(spec.dtype, jnp.inexact) and (np.isfinite(array) > np.isfinite(cast)).any():
        raise ValueError(
            f"Feature {name!r} holds numbers that are too large for {spec.dtype.name} of the "
            f"expected {spec}."
        )
    return cast


def _castable(array: np.ndarray, dtype: np.dtype, *, weak: bool) -> bool:
    """Says whether the numbers may become `dtype`. 64-bit arrays count as what JAX makes of
    them. Python numbers (`weak`) have no width of their own: only their kind counts."""
    if not weak:
        return np.can_cast(narrow(array.dtype), dtype, "safe")
    if array.size == 0:
        return True
    given, wanted = _kind(array.dtype), _kind(dtype)
    return given == wanted or 0 < given < wanted  # a boolean is no number here


def _kind(dtype: np.dtype) -> int:
    return next(i for i, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind))


def _check_shape(name: str, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    if array.ndim != len(spec.shape) or array.shape[1:] != spec.row:
        raise ValueError(
            f"Feature {name!r} has the shape {list(array.shape)}, and expected is {spec}."
        )
    return array
