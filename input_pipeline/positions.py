"""The positions after many batches, made only when one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from input_pipeline.source import Position, PositionError, RegroupedInputError


def check_same_input(position: Position, own: Position) -> None:
    """Refuses the position of another kind of input, or of batches of another size.

    Args:
      position: that was saved.
      own: one of the input that is to go on from it.

    Raises:
      PositionError: `kind` differs.
      RegroupedInputError: only `batch_size` differs.
    """
    if position.get("kind") != own["kind"]:
        raise PositionError(
            f"The saved position of the input is of kind {position.get('kind')!r}, this input is "
            f"of kind {own['kind']!r}. Feed the input that was saved, or start it afresh."
        )
    if position.get("batch_size") != own["batch_size"]:
        raise RegroupedInputError(
            f"The saved position of the input counts batches of {position.get('batch_size')} "
            f"examples, and this input is read in batches of {own['batch_size']}: its place among "
            "the examples cannot be told. Keep the batch size, start the input afresh, or use a "
            "Dataset, which counts examples."
        )


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
