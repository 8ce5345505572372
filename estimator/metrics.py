"""Means over real examples, on the device and on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_mergeable(metric: Any) -> bool:
    """Says whether `metric` is an object with `merge` and `compute`, such as a clu Metric."""
    return hasattr(metric, "merge") and hasattr(metric, "compute")


def masked_sum(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns the float32 sum of `values` `[batch]` over the rows where `mask` is True."""
    values = values.astype(jnp.float32)
    return jnp.sum(values if mask is None else jnp.where(mask, values, 0.0))


def mean_loss(loss: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns a spec's loss, `[batch]` or a scalar mean, as a float32 scalar.

    A scalar never comes with a mask: whoever feeds the batches sees to that.
    """
    if loss.ndim == 0:
        return loss.astype(jnp.float32)
    return masked_sum(loss, mask) / (loss.shape[0] if mask is None else jnp.sum(mask))


class MeanOverExamples:
    """Accumulates sums over examples in float64 on the host."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, total: float, count: int) -> None:
        """Adds the sum `total` of `count` examples."""
        self._sums[name] = self._sums.get(name, 0.0) + float(total)
        self._counts[name] = self._counts.get(name, 0) + count

    def compute(self) -> dict[str, float]:
        """Returns the mean by name."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}


class HostMetrics:
    """Accumulates what a metric_fn returns for each batch of an evaluation."""

    def __init__(self) -> None:
        self._means = MeanOverExamples()
        self._merged: dict[str, Any] = {}

    def add(self, values: Any, rows: int) -> None:
        """Adds the result for a batch of `rows` real examples.

        Raises:
          TypeError: the result is no dict of scalars, arrays `[rows]` or mergeable objects.
        """
        if not isinstance(values, Mapping):
            raise TypeError(
                f"The metric_fn of eval_metrics must return a dict, got {type(values).__name__}."
            )
        for name, value in values.items():
            if is_mergeable(value):
                seen = self._merged.get(name)
                self._merged[name] = value if seen is None else seen.merge(value)
                continue
            array = np.asarray(value)
            if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
                raise TypeError(
                    f"The metric_fn of eval_metrics returned {name!r} of type "
                    f"{type(value).__name__}. Return a number, one number an example, or an object "
                    "with merge and compute."
                )
            if array.ndim > 1 or (array.ndim == 1 and len(array) != rows):
                raise TypeError(
                    f"The metric_fn of eval_metrics returned {name!r} of shape "
                    f"{list(array.shape)} for {rows} examples. Return a scalar, one value an "
                    "example, or an object with merge and compute."
                )
            total = array.sum(dtype=np.float64) if array.ndim else float(array) * rows
            self._means.add(name, total, rows)

    def compute(self) -> dict[str, Any]:
        """Returns the value of each metric over all batches."""
        return {
            **self._means.compute(),
            **{name: merged.compute() for name, merged in self._merged.items()},
        }
