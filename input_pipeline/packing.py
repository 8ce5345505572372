"""Many small arrays sent as few: to begin a transfer costs as much as to copy some 100 kB."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

_LEAST_ARRAYS = 8  # that are alike, or the copy is not worth it
_MOST_BYTES = 128 * 2**10  # of one of them


@dataclasses.dataclass(frozen=True)
class Packing:
    """Which arrays of stacked batches travel as one: small ones of the same shape and dtype.

    Attributes:
      treedef: structure of the batches.
      groups: positions of the leaves in each array that travels.
    """

    treedef: Any
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, batches: Any) -> Packing | None:
        """Returns how to pack a pytree of arrays `[capacity, batch, ...]`; None where that would
        not pay."""
        leaves, treedef = jax.tree_util.tree_flatten(batches)
        if len(leaves) < _LEAST_ARRAYS:
            return None
        alike: dict[Any, list[int]] = collections.defaultdict(list)
        for position, leaf in enumerate(leaves):
            alike[leaf.shape, leaf.dtype].append(position)
        groups: list[tuple[int, ...]] = []
        for positions in alike.values():
            small = leaves[positions[0]].nbytes <= _MOST_BYTES
            if small and len(positions) >= _LEAST_ARRAYS:
                groups.append(tuple(positions))
            else:
                groups += [(position,) for position in positions]
        return None if len(groups) == len(leaves) else cls(treedef, tuple(groups))

    def pack(self, batches: Any) -> tuple[np.ndarray, ...]:
        """Returns the arrays that travel, `[members * capacity, batch, ...]`: the members of a
        group one behind the other, so that the batch dimension stays where it was."""
        leaves = jax.tree_util.tree_leaves(batches)
        return tuple(
            leaves[group[0]]
            if len(group) == 1
            else np.concatenate([leaves[position] for position in group])
            for group in self.groups
        )

    def batch(self, arrays: Sequence[Any], index: Any) -> Any:
        """Returns batch `index` of what was packed: the pytree with leaves `[batch, ...]`. To be
        called in a program on the devices."""
        leaves: list[Any] = [None] * self.treedef.num_leaves
        for group, array in zip(self.groups, arrays, strict=True):
            # One slice for each: XLA:CPU takes longer for one through all of them.
            capacity = array.shape[0] // len(group)
            for member, position in enumerate(group):
                place = member * capacity + index
                leaves[position] = lax.dynamic_index_in_dim(array, place, keepdims=False)
        return jax.tree_util.tree_unflatten(self.treedef, leaves)
