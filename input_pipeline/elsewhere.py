"""The source of a process for which another one reads."""

from __future__ import annotations

from typing import Any

from input_pipeline.source import Position, Source, Stack


class ElsewhereSource(Source):
    """Has no batches, and stands nowhere.

    Args:
      batch_size: examples in a full batch of the source that is read elsewhere.
    """

    def __init__(self, batch_size: int):
        self.batch_size = batch_size

    def element_spec(self) -> tuple[Any, Any]:
        return None, None

    def num_batches(self) -> int | None:
        return 0

    def at_end(self) -> bool:
        """False: the end is for the process that reads to find."""
        return False

    def read(
        self, count: int, *, capacity: int | None = None, fill_secs: float | None = None
    ) -> Stack | None:
        return None

    def position(self) -> Position:
        return {}

    def seek(self, position: Position) -> None:
        """Leaves the position to the process that reads."""

    def close(self) -> None:
        """Has nothing to release."""
