"""Arrays with one row for each example."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from input_pipeline.dtypes import is_numeric, narrow
from input_pipeline.layout import Layout, named_leaves


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """Arrays with one row for each example.

    Attributes:
      arrays: each `[num_examples, ...]`, contiguous; numbers with their dtype on the device.
      layout: of a batch of them.
    """

    arrays: tuple[np.ndarray, ...]
    layout: Layout

    @classmethod
    def of(cls, pair: tuple[Any, Any]) -> Columns:
        """Converts (features, labels) once, without a copy where nothing changes.

        Raises:
          ValueError: there are no arrays, one is a scalar or has values that do not fit into
            32 bits, or they differ in length.
        """
        names, leaves, treedef = named_leaves(pair)
        Layout.of(pair, batched=True)
        for name, leaf in zip(names, leaves, strict=True):
            if len(leaf) != len(leaves[0]):
                raise ValueError(
                    f"The arrays differ in their number of examples: {names[0]} has "
                    f"{len(leaves[0])}, {name} has {len(leaf)}."
                )
        # np.take would copy an array that is not contiguous as a whole, each time.
        arrays = tuple(
            np.ascontiguousarray(narrow(leaf, name) if is_numeric(leaf.dtype) else leaf)
            for name, leaf in zip(names, leaves, strict=True)
        )
        layout = Layout.of(jax.tree_util.tree_unflatten(treedef, arrays), batched=True)
        return cls(arrays, layout)

    @property
    def pair(self) -> tuple[Any, Any]:
        """(features, labels)."""
        return self.layout.unflatten(list(self.arrays))

    def __len__(self) -> int:
        return len(self.arrays[0])
