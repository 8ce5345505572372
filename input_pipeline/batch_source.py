"""The source that stacks what a reader reads."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from input_pipeline.batching import Stacker, check_rows
from input_pipeline.host_columns import HostColumns
from input_pipeline.layout import Layout, split
from input_pipeline.queue import QueueClosed
from input_pipeline.reader import BatchReader
from input_pipeline.source import Position, Source, Stack


@dataclasses.dataclass(frozen=True)
class _Batch:
    """One batch that has been checked.

    Attributes:
      leaves: each `[rows, ...]`.
      layout: what they are like.
      host_columns: what stays on the host.
      position: where the reader stands after it.
      index: of the batch, from 0 where reading began.
    """

    leaves: list[np.ndarray]
    layout: Layout
    host_columns: dict[str, np.ndarray]
    position: Position
    index: int


class BatchSource(Source):
    """Stacks the batches of a reader, each value copied once.

    Args:
      reader: what is read, and closed by `close`.
      batch_size: examples in a full batch.
      drop_remainder: leave batches with fewer examples out.
      host_columns: put columns that are no numbers into `Stack.host_columns`, instead of
        refusing them.
    """

    def __init__(
        self,
        reader: BatchReader,
        *,
        batch_size: int,
        drop_remainder: bool = False,
        host_columns: bool = False,
    ):
        self.batch_size = batch_size
        self.seeks_by_reading = reader.seeks_by_reading
        self.shapes_vary = reader.shapes_vary
        self.common_position = reader.common_position
        self._reader = reader
        self._drop_remainder = drop_remainder
        self._host_columns = HostColumns() if host_columns else None
        self._layout: Layout | None = None
        self._layouts: dict[Any, Layout] = {}
        self._held: _Batch | None = None
        self._position: Position | None = None
        self._index = 0
        self._dropped = 0
        self._closed = False
        self._ended = False
        self._failure: BaseException | None = None

    @property
    def host_column_names(self) -> tuple[str, ...]:
        return () if self._host_columns is None else self._host_columns.names

    def element_spec(self) -> tuple[Any, Any]:
        if self._layout is None:
            self._hold_next()
        return (None, None) if self._layout is None else self._layout.element_spec(self.batch_size)

    def num_batches(self) -> int | None:
        left = None if self._drop_remainder else self._reader.num_batches()
        return left if left is None or self._held is None else left + 1

    def at_end(self) -> bool:
        self._hold_next()
        return self._held is None

    def read(
        self, count: int, *, capacity: int | None = None, fill_secs: float | None = None
    ) -> Stack | None:
        deadline = None if fill_secs is None else time.monotonic() + fill_secs
        self._hold_next()
        if self._held is None:
            return None
        layout = self._held.layout
        capacity = capacity or count
        count = min(count, capacity)
        stacker = Stacker(layout, batch_size=self.batch_size, capacity=capacity)
        # With shapes that vary, a stack ends where the next batch has other ones.
        while self._held is not None and self._held.layout is layout:
            batch, self._held = self._held, None
            stacker.add(batch.leaves, batch.position, batch.host_columns, index=batch.index)
            self._position = batch.position
            if len(stacker) == count or (deadline is not None and time.monotonic() >= deadline):
                break
            try:
                self._hold_next()
            except QueueClosed:
                raise
            except BaseException:
                break  # it is kept for the next read: what came before it counts
        return stacker.stack()

    def position(self) -> Position:
        if self._position is None:
            self._position = self._reader.position()
        return self._position

    def seek(self, position: Position) -> None:
        if self._held is None or position != self.position():
            self._reader.seek(position)
            self._held = None
            self._ended = False
            self._failure = None
        self._position = position

    def close(self) -> None:
        self._closed = True
        self._reader.close()

    def _hold_next(self) -> None:
        """Makes `_held` the next batch that counts, unless there is one; None at the end."""
        if self._closed:
            raise QueueClosed("The input is closed.")
        if self._failure is not None:
            raise self._failure  # what has failed would seem to have ended
        self.position()  # of the start, before the reader leaves it
        try:
            while self._held is None and not self._ended:
                element = self._reader.next()
                if element is None:
                    self._ended = True
                    break
                batch = self._checked(split(element[0]))
                if self._counts(len(batch.leaves[0])):
                    self._held = batch
        except BaseException as error:
            self._failure = error
            raise

    def _counts(self, rows: int) -> bool:
        """Says whether a batch of so many examples is read, or left out."""
        if rows and self._drop_remainder and rows < self.batch_size:
            self._dropped += 1
            if self._dropped == 2 and self._index == 2:
                raise ValueError(
                    f"The first two batches have fewer examples ({rows} in the second) than "
                    f"batch_size={self.batch_size}, and drop_remainder would leave out all such. "
                    "Make batches of params['batch_size'] examples."
                )
            return False
        return rows > 0

    def _checked(self, pair: tuple[Any, Any]) -> _Batch:
        index = self._index
        self._index += 1
        host_columns: dict[str, np.ndarray] = {}
        if self._host_columns is not None:
            pair, host_columns = self._host_columns.take_out(pair)
        if self._layout is None:
            self._layout = Layout.of(pair, batched=True)
        layout = self._layout
        if self._reader.shapes_vary:
            layout = layout.with_shapes_of(pair)
            layout = self._layouts.setdefault(layout.shapes, layout)
        leaves = layout.match(pair, index)
        if leaves:
            check_rows(len(leaves[0]), self.batch_size, index)
        for name, column in host_columns.items():
            if len(column) != len(leaves[0]):
                raise ValueError(
                    f"The leaves of batch {index} differ in their number of examples: "
                    f"{layout.names[0]} has {len(leaves[0])}, features[{name!r}] has {len(column)}."
                )
        return _Batch(
            leaves=leaves,
            layout=layout,
            host_columns=host_columns,
            position=self._reader.position(),
            index=index,
        )
