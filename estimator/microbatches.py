"""Batches cut into microbatches, and the values of the parts put together again."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


def number(rows: int, wanted: int) -> int:
    """Returns into how many equal microbatches `rows` examples are cut: `wanted`, or the next
    larger number that divides."""
    return next(n for n in range(min(wanted, rows), rows + 1) if rows % n == 0)


def cut(batch: Any, count: int) -> Any:
    """Returns arrays `[batch, ...]` as `[count, batch / count, ...]`.

    Microbatch i has the rows i, i + count, ...: of those that a device holds, every microbatch
    has as many, so none has to move.
    """
    return jax.tree.map(
        lambda leaf: jnp.moveaxis(
            leaf.reshape(leaf.shape[0] // count, count, *leaf.shape[1:]), 1, 0
        ),
        batch,
    )


def joined(parts: Any) -> Any:
    """Undoes `cut`."""
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), parts)


class Tensors(NamedTuple):
    """Arrays of one tree, told apart; each of the two trees has None where the other has a leaf.

    Attributes:
      rows: those with an entry for each example, `[batch, ...]`.
      others: the rest.
    """

    rows: Any
    others: Any

    @classmethod
    def of(cls, tree: Any, batch_size: int) -> Tensors:
        """Tells the arrays of `tree` apart by their first dimension."""

        def is_rows(leaf: Any) -> bool:
            return leaf.shape[:1] == (batch_size,)

        return cls(
            jax.tree.map(lambda leaf: leaf if is_rows(leaf) else None, tree),
            jax.tree.map(lambda leaf: None if is_rows(leaf) else leaf, tree),
        )

    def together(self) -> Any:
        """Returns the tree that they are of."""
        return jax.tree.map(
            lambda rows, other: other if rows is None else rows,
            self.rows,
            self.others,
            is_leaf=lambda leaf: leaf is None,
        )


def mean_of_parts(parts: Any, weights: jax.Array) -> Any:
    """Returns the mean of arrays `[parts, ...]` by `weights` `[parts]`; of what has no mean
    (integers, flags), the first."""

    def mean(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf[0]
        weight = weights.reshape(-1, *[1] * (leaf.ndim - 1))
        # A part of nothing but padding may have made a NaN of it.
        weighed = jnp.where(weight > 0, leaf * weight, 0)
        return (weighed.sum(0) / weights.sum()).astype(leaf.dtype)

    return jax.tree.map(mean, parts)


def merged(parts: Any) -> Any:
    """Returns mergeable metrics, the arrays in them `[parts, ...]`, as one."""

    def part(index: Any) -> Any:
        return jax.tree.map(
            lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), parts
        )

    count = jax.tree.leaves(parts)[0].shape[0]
    if count == 1:
        return jax.tree.map(lambda leaf: leaf[0], parts)
    return lax.fori_loop(1, count, lambda index, sofar: sofar.merge(part(index)), part(0))
