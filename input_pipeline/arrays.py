"""Batches from arrays that are in memory: the fastest input, and resumed anywhere at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from input_pipeline.columns import Columns
from input_pipeline.cuts import Cuts
from input_pipeline.order import Order, OrderReader
from input_pipeline.positions import LazyPositions
from input_pipeline.source import Position, Source, Stack


class ArraySource(Source):
    """Gathers batches of rows straight into the arrays of a stack.

    Args:
      columns: the data.
      order: which rows are read when.
      cuts: where batches end.
      host_columns: arrays `[num_examples, ...]` for `Stack.host_columns`.

    Raises:
      ValueError: a column holds no numbers.
    """

    def __init__(
        self,
        columns: Columns,
        order: Order,
        cuts: Cuts,
        host_columns: Mapping[str, np.ndarray] | None = None,
    ):
        self.batch_size = cuts.size
        self.common_position = order.ends_in_shards
        self._spec = columns.layout.element_spec(cuts.size)
        self._columns = columns
        self._host_columns = host_columns or {}
        self._order = order
        self._reader = OrderReader(order)
        self._cuts = cuts
        self._length = order.length
        self._cursor = 0

    @property
    def host_column_names(self) -> tuple[str, ...]:
        return tuple(self._host_columns)

    def element_spec(self) -> tuple[Any, Any]:
        return (None, None) if self._cuts.num_batches(0, self._length) == 0 else self._spec

    def num_batches(self) -> int | None:
        return self._cuts.num_batches(self._cursor, self._length)

    def at_end(self) -> bool:
        return self.num_batches() == 0

    def read(
        self, count: int, *, capacity: int | None = None, fill_secs: float | None = None
    ) -> Stack | None:
        # Memory is fast enough that `fill_secs` never comes into play.
        capacity = capacity or count
        count = min(count, capacity)
        buffers = self._columns.layout.buffers(capacity, self.batch_size)
        rows_of_batches: list[int] = []
        cursors: list[int] = []
        host_columns: list[dict[str, np.ndarray]] = []
        for start, batches, rows in self._cuts.runs(self._cursor, self._length, count):
            wanted = self._reader.read(start, batches * rows)
            if self._host_columns:
                host_columns += self._host_batches(wanted, batches, rows)
            if rows < self.batch_size:
                wanted = _cycle(wanted, self.batch_size)
            steps = len(rows_of_batches)
            for array, buffer in zip(self._columns.arrays, buffers, strict=True):
                block = buffer[steps : steps + batches]
                block = block.reshape(batches * self.batch_size, *array.shape[1:])
                _gather(array, wanted, block)
            self._cursor = start + batches * rows
            rows_of_batches += [rows] * batches
            cursors += range(start + rows, self._cursor + 1, rows)
        if not cursors:
            return None
        features, labels = self._columns.layout.unflatten(buffers)
        return Stack(
            features=features,
            labels=labels,
            rows=np.array(rows_of_batches, np.int32),
            positions=LazyPositions(cursors, self._position_at),
            host_columns=host_columns,
        )

    def position(self) -> Position:
        return self._position_at(self._cursor)

    def seek(self, position: Position) -> None:
        epoch, examples = self._order.cursor(position)
        self._cursor = epoch * self._order.epoch_length + examples

    def close(self) -> None:
        """Does nothing: the arrays belong to the caller."""

    def _position_at(self, cursor: int) -> Position:
        return self._order.position(*divmod(cursor, max(self._order.epoch_length, 1)))

    def _host_batches(
        self, wanted: np.ndarray | slice, batches: int, rows: int
    ) -> list[dict[str, np.ndarray]]:
        chosen = {name: column[wanted] for name, column in self._host_columns.items()}
        return [
            {name: column[at : at + rows] for name, column in chosen.items()}
            for at in range(0, batches * rows, rows)
        ]


def _gather(array: np.ndarray, wanted: np.ndarray | slice, block: np.ndarray) -> None:
    if isinstance(wanted, slice):
        block[...] = array[wanted]
    else:
        # The indices are in range; with the mode "raise", numpy would copy once more.
        np.take(array, wanted, axis=0, out=block, mode="clip")


def _cycle(wanted: np.ndarray | slice, size: int) -> np.ndarray:
    """Returns `size` indices that repeat those wanted."""
    indices = np.arange(wanted.start, wanted.stop) if isinstance(wanted, slice) else wanted
    return np.resize(indices, size)
