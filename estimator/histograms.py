"""Histograms of parameters and gradients, taken on the device, at the steps that want them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hooks import EverySteps, Histogram

BINS = 30
_STATISTICS = 5  # minimum, maximum, total, squares, non_finite

Histograms = Mapping[str, Any]
"""What was histogrammed -> `[1, arrays, 5 + BINS]` float32. (The leading 1 tells it apart from
outputs `[batch, ...]`, which lie on the devices by their rows.)"""


def take_if(due: Any, trees: Mapping[str, Any]) -> Histograms:
    """Returns histograms of the arrays of each tree if `due`, a bool scalar; zeros if not, which
    cost next to nothing."""

    def take() -> Histograms:
        return {name: _of_tree(tree) for name, tree in trees.items()}

    def skip() -> Histograms:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(take))

    return lax.cond(due, take, skip)


def read(taken: Histograms, tree: Any) -> dict[str, Histogram]:
    """Returns the histograms of one step by names such as `gradients/Dense_0/kernel`.

    Args:
      taken: by `take_if`, in numpy.
      tree: like those of which they were taken.
    """
    names = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if _counts(leaf)
    ]
    return {
        f"{what}/{name}": _read_one(row)
        for what, rows in taken.items()
        for name, row in zip(names, rows[0], strict=True)
    }


def read_due(
    before: int, parts: Sequence[tuple[Any, int]], every: int | None, tree: Any
) -> Mapping[int, Mapping[str, Histogram]]:
    """Returns the histograms of the due steps of a loop, by step; see `read`.

    Args:
      before: global step before the loop.
      parts: for each dispatch its outputs `[steps, ...]`, of which one is `histograms`, and how
        many steps it ran.
      every: steps between those that are due; None if none ever are.
      tree: as in `read`.
    """
    due: dict[int, Mapping[str, Histogram]] = {}
    if every is None:
        return due
    for outputs, steps in parts:
        due_here = range(EverySteps(every).next_step(before), before + steps + 1, every)
        taken = jax.device_get(outputs.histograms) if due_here else {}
        for step in due_here:
            at = step - before - 1
            due[step] = read({what: rows[at] for what, rows in taken.items()}, tree)
        before += steps
    return due


def _of_tree(tree: Any) -> jax.Array:
    rows = [_of_array(leaf) for leaf in jax.tree.leaves(tree) if _counts(leaf)]
    return jnp.stack(rows)[None] if rows else jnp.zeros((1, 0, _STATISTICS + BINS))


def _counts(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) and math.prod(leaf.shape) > 0


def _of_array(array: Any) -> jax.Array:
    """Only elementwise operations and sums over all axes: on many devices nothing but these
    sums is communicated, however the array lies on them."""
    finite = jnp.isfinite(array)
    numbers = jnp.where(finite, array, 0).astype(jnp.float32)
    count = jnp.sum(finite, dtype=jnp.float32)
    least = jnp.min(jnp.where(finite, array, jnp.inf)).astype(jnp.float32)
    most = jnp.max(jnp.where(finite, array, -jnp.inf)).astype(jnp.float32)
    least, most = jnp.where(count > 0, jnp.stack([least, most]), 0.0)

    def below(fraction: jax.Array) -> jax.Array:
        edge = least * (1 - fraction) + most * fraction  # of no difference that overflows
        return jnp.sum(finite & (numbers < edge), dtype=jnp.float32)

    inner = jax.vmap(below)(jnp.arange(1, BINS, dtype=jnp.float32) / BINS)
    counts = jnp.diff(inner, prepend=0.0, append=count)
    statistics = [least, most, jnp.sum(numbers), jnp.sum(numbers**2), array.size - count]
    return jnp.concatenate([jnp.stack(statistics), counts])


def _read_one(row: np.ndarray) -> Histogram:
    minimum, maximum, total, squares, non_finite = row[:_STATISTICS].tolist()
    return Histogram(
        counts=row[_STATISTICS:],
        minimum=minimum,
        maximum=maximum,
        total=total,
        squares=squares,
        non_finite=int(non_finite),
    )
