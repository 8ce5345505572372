"""Batches on the devices, as loops take one after the other out of a stack of them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from input_pipeline import Packing


class Batches(NamedTuple):
    """Stacked batches.

    Attributes:
      features: pytree of arrays `[capacity, batch, ...]`.
      labels: likewise, or None.
      mask: `[capacity, batch]` bool, False on padding; None if every row is real.
    """

    features: Any
    labels: Any
    mask: Any

    @property
    def shape(self) -> tuple[int, int]:
        """(capacity, batch)."""
        return jax.tree.leaves(self.features)[0].shape[:2]

    def at(self, index: Any) -> Batches:
        """Returns batch `index`, its arrays `[batch, ...]`."""
        return _entry(self, index)

    def with_mask(self, mask: Any) -> Batches:
        """Returns the same with another mask."""
        return self._replace(mask=mask)


class ResidentBatches(NamedTuple):
    """Stacked batches of rows of arrays that stay on the devices: only the numbers of the rows
    are put there for each stack.

    Attributes:
      table: (features, labels), pytrees of arrays `[num_examples, ...]`; labels may be None.
      rows: `[capacity, batch]` int32.
      mask: `[capacity, batch]` bool, False on padding; None if every row is real.
    """

    table: tuple[Any, Any]
    rows: Any
    mask: Any

    @property
    def shape(self) -> tuple[int, int]:
        """(capacity, batch)."""
        return self.rows.shape

    def at(self, index: Any) -> Batches:
        """Returns batch `index`, gathered: its arrays `[batch, ...]`."""
        rows, mask = _entry((self.rows, self.mask), index)
        features, labels = jax.tree.map(
            lambda column: jnp.take(column, rows, axis=0, mode="clip"), self.table
        )
        return Batches(features, labels, mask)

    def with_mask(self, mask: Any) -> ResidentBatches:
        """Returns the same with another mask."""
        return self._replace(mask=mask)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """Stacked batches of many small arrays, which travel as few.

    Attributes:
      arrays: as `packing` made them.
      mask: `[capacity, batch]` bool, False on padding; None if every row is real.
      packing: of (features, labels).
    """

    arrays: tuple[Any, ...]
    mask: Any
    packing: Packing = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, batches: Batches) -> PackedBatches | Batches:
        """Packs numpy arrays where that pays."""
        features, labels, mask = batches
        packing = Packing.of((features, labels))
        if packing is None:
            return batches
        return cls(packing.pack((features, labels)), mask, packing)

    @property
    def shape(self) -> tuple[int, int]:
        """(capacity, batch)."""
        rows, batch_size = self.arrays[0].shape[:2]
        return rows // len(self.packing.groups[0]), batch_size

    def at(self, index: Any) -> Batches:
        """Returns batch `index`, its arrays `[batch, ...]`."""
        features, labels = self.packing.batch(self.arrays, index)
        return Batches(features, labels, _entry(self.mask, index))

    def with_mask(self, mask: Any) -> PackedBatches:
        """Returns the same with another mask."""
        return dataclasses.replace(self, mask=mask)


Stacked = Batches | ResidentBatches | PackedBatches


def _entry(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), tree)
