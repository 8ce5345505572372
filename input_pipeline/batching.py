"""Stacks batches into arrays `[capacity, batch, ...]`, each value copied once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from input_pipeline.dtypes import assign
from input_pipeline.layout import Layout
from input_pipeline.source import Position, Stack


class Stacker:
    """Fills one stack, batch after batch.

    Args:
      layout: of the batches.
      batch_size: examples in each batch of the stack.
      capacity: batches that the arrays can hold.
    """

    def __init__(self, layout: Layout, *, batch_size: int, capacity: int):
        self._layout = layout
        self._batch_size = batch_size
        self._buffers = layout.buffers(capacity, batch_size)
        self._rows: list[int] = []
        self._positions: list[Position] = []
        self._host_columns: list[Mapping[str, np.ndarray]] = []

    def __len__(self) -> int:
        """Returns how many batches are set."""
        return len(self._rows)

    def add(
        self,
        leaves: Sequence[np.ndarray],
        position: Position,
        host_columns: Mapping[str, np.ndarray],
        *,
        index: int,
    ) -> None:
        """Copies one batch, of 1 to `batch_size` examples, and pads it.

        Args:
          leaves: each `[rows, ...]`, as `Layout.match` returned them.
          position: of the input after the batch.
          host_columns: of the batch, each `[rows, ...]`; empty where there are none.
          index: of the batch in the input, for the error.

        Raises:
          ValueError: the batch has more than `batch_size` examples, or a value does not fit.
        """
        rows = len(leaves[0])
        check_rows(rows, self._batch_size, index)
        step = len(self._rows)
        for buffer, leaf, name in zip(self._buffers, leaves, self._layout.names, strict=True):
            block = buffer[step]
            if rows == self._batch_size:
                assign(block, leaf, name)
            else:
                assign(block[:rows], leaf, name)
                pad(block, rows)
        self._rows.append(rows)
        self._positions.append(position)
        if host_columns:
            self._host_columns.append(host_columns)

    def stack(self) -> Stack:
        """Returns what was added."""
        features, labels = self._layout.unflatten(self._buffers)
        return Stack(
            features=features,
            labels=labels,
            rows=np.array(self._rows, np.int32),
            positions=self._positions,
            host_columns=self._host_columns,
        )


def pad(block: np.ndarray, rows: int) -> None:
    """Repeats the first `rows` rows of `block` in a cycle over the others, in place."""
    while rows < len(block):
        # Doubles what is filled; `rows` stays a multiple of the number that it was at first.
        copied = min(rows, len(block) - rows)
        block[rows : rows + copied] = block[:copied]
        rows += copied


def check_rows(rows: int, batch_size: int, index: int) -> None:
    """Refuses a batch of more than `batch_size` examples.

    Raises:
      ValueError: it has more; names it by its `index` in the input.
    """
    if rows > batch_size:
        raise ValueError(
            f"Batch {index} of the input has {rows} examples, more than "
            f"batch_size={batch_size}. Make batches of params['batch_size'] examples."
        )
