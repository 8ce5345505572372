"""The positions after many batches, made only when one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from input_pipeline.source import Position


class LazyPositions(Sequence[Position]):
    """Positions made from cursors by `to_position`, which must not change its mind later.

    A stack has a position for each batch, and most are never looked at.
    """

    def __init__(self, cursors: Sequence[int], to_position: Callable[[int], Position]):
        self._cursors = cursors
        self._to_position = to_position

    def __len__(self) -> int:
        return len(self._cursors)

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> LazyPositions: ...
    def __getitem__(self, index: int | slice) -> Position | LazyPositions:
        if isinstance(index, slice):
            return LazyPositions(self._cursors[index], self._to_position)
        return self._to_position(self._cursors[index])
