"""Describes what is in a checkpoint. Starts no device."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping

import jax
from etils import epath

from estimator.checkpoints import arrays
from estimator.checkpoints.layout import existing, global_step


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Description:
    """What is in a checkpoint; `print` shows it as a table.

    Attributes:
      path: of the checkpoint.
      step: global step at which it was taken.
      variables: shape and dtype of the model's variables by name.
      training: the same of what only training needs: the step and the optimizer's state.
    """

    path: str
    step: int
    variables: Mapping[str, jax.ShapeDtypeStruct]
    training: Mapping[str, jax.ShapeDtypeStruct]

    def __str__(self) -> str:
        header = ("variable", "shape", "dtype", "bytes")
        rows = [
            (name, str(list(leaf.shape)), str(leaf.dtype), f"{_bytes(leaf):,}")
            for name, leaf in sorted(self.variables.items())
        ]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [
            f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {dtype:<{widths[2]}}  {size:>{widths[3]}}"
            for name, shape, dtype, size in (header, *rows)
        ]
        return "\n".join(
            [
                f"{self.path}, global step {self.step}",
                *lines,
                f"{_total(self.variables)} of variables; {_total(self.training)} of training state",
            ]
        )

    __repr__ = __str__


def describe(path: str | os.PathLike[str]) -> Description:
    """Returns what is in a checkpoint: `print(est.checkpoints.describe(path))` shows a table.

    Args:
      path: of the checkpoint, or of a model_dir, whose newest one is described.

    Raises:
      FileNotFoundError: there is no checkpoint.
      CheckpointError: it is damaged, or has the layout of another version.
    """
    found: epath.Path = existing(path)
    return Description(
        path=str(found),
        step=global_step(found),
        variables=arrays.shapes(found / "variables"),
        training=arrays.shapes(found / "training"),
    )


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def _total(leaves: Mapping[str, jax.ShapeDtypeStruct]) -> str:
    return f"{len(leaves)} arrays with {sum(map(_bytes, leaves.values())):,} bytes"
