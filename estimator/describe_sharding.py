"""A table of where the variables of a model lie."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import PartitionSpec

from estimator.annotations import name_of
from estimator.estimator import Estimator


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardingRow:
    """Where one array of the train state lies.

    Attributes:
      name: such as `params/Dense_0/kernel`.
      dtype: of its elements.
      shape: of the whole array.
      spec: the mesh axes over which its dimensions are split.
      bytes_per_device: what each device keeps of it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    spec: PartitionSpec
    bytes_per_device: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardingTable:
    """Where the arrays of a train state lie; `print` shows it as a table.

    Attributes:
      mesh_shape: devices along each axis of the mesh, by name.
      rows: one an array.
    """

    mesh_shape: dict[str, int]
    rows: tuple[ShardingRow, ...]

    @property
    def bytes_per_device(self) -> int:
        """What each device keeps of the whole state."""
        return sum(row.bytes_per_device for row in self.rows)

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis}={size}" for axis, size in self.mesh_shape.items())
        lines = [("variable", "shape", "spec", "bytes per device")]
        for row in self.rows:
            shape = f"{row.dtype}[{', '.join(map(str, row.shape))}]"
            lines.append((row.name, shape, f"P{tuple(row.spec)}", f"{row.bytes_per_device:,}"))
        lines.append(("in all", "", "", f"{self.bytes_per_device:,}"))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(line[:3], widths, strict=False))]
                + [line[3].rjust(widths[3])]
            )
            for line in lines
        ]
        return "\n".join([f"mesh: {mesh}", *text])


def describe_sharding(estimator: Estimator, batch: Any) -> ShardingTable:
    """Returns where parameters, optimizer state and other variables will lie, without making them.

    Args:
      estimator: whose model it is.
      batch: (features, labels) of a training batch, arrays or `jax.ShapeDtypeStruct`s
        `[batch, ...]`.

    Raises:
      ValueError: a rule of `DeviceConfig` does not fit; as `Estimator.train` would.
    """
    state = estimator.abstract_state(batch)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return ShardingTable(
        mesh_shape=dict(leaves[0][1].sharding.mesh.shape),
        rows=tuple(
            ShardingRow(
                name=name_of(path),
                dtype=str(leaf.dtype),
                shape=leaf.shape,
                spec=leaf.sharding.spec,
                bytes_per_device=math.prod(leaf.sharding.shard_shape(leaf.shape))
                * leaf.dtype.itemsize,
            )
            for path, leaf in leaves
        ),
    )
