"""Batches whose examples do not lie along the first dimension."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from input_pipeline.layout import split, tensor_name
from input_pipeline.reader import BatchReader
from input_pipeline.source import Position


@dataclasses.dataclass(frozen=True)
class BatchAxes:
    """Where the batch dimension is in the user's tensors; the first in all that is not named.

    In between, from the input to the call of model_fn, it is the first dimension in all.

    Attributes:
      axes: name, such as `features/image` or `labels`, -> dimension, from 0.
    """

    axes: Mapping[str, int]

    def to_front(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        """Returns (features, labels) as the user has them with each batch dimension in front, as
        views.

        Raises:
          ValueError: a tensor does not have the dimension that is named.
        """

        def moved(path: Any, leaf: Any) -> Any:
            axis = self.axes.get(tensor_name(path), 0)
            if axis == 0:
                return leaf
            array = np.asarray(leaf)
            if axis >= array.ndim:
                raise ValueError(
                    f"batch_axis says that dimension {axis} of {tensor_name(path)} is the batch, "
                    f"but it has the shape {list(array.shape)}. Dimensions count from 0."
                )
            return np.moveaxis(array, axis, 0)

        return jax.tree_util.tree_map_with_path(moved, pair) if self.axes else pair

    def restored(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        """Returns (features, labels), jax arrays with the batch in front, as the user has them."""

        def moved(path: Any, leaf: Any) -> Any:
            axis = self.axes.get(tensor_name(path), 0)
            return jax.numpy.moveaxis(leaf, 0, axis) if axis else leaf

        return jax.tree_util.tree_map_with_path(moved, pair) if self.axes else pair


class FrontReader(BatchReader):
    """Reads the batches of another reader with their batch dimension in front."""

    def __init__(self, reader: BatchReader, axes: BatchAxes):
        self.seeks_by_reading = reader.seeks_by_reading
        self.shapes_vary = reader.shapes_vary
        self.common_position = reader.common_position
        self._reader = reader
        self._axes = axes

    def next(self) -> tuple[Any] | None:
        element = self._reader.next()
        return None if element is None else (self._axes.to_front(split(element[0])),)

    def position(self) -> Position:
        return self._reader.position()

    def seek(self, position: Position) -> None:
        self._reader.seek(position)

    def num_batches(self) -> int | None:
        return self._reader.num_batches()

    def close(self) -> None:
        self._reader.close()
