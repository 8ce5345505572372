"""Where batches end in a sequence of examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Cuts:
    """How a sequence of examples is cut into batches.

    Attributes:
      size: examples in a full batch.
      drop_remainder: leave partial batches out.
      segment: examples after which, again and again, a batch is cut short; None if only at the
        end of the sequence.
    """

    size: int
    drop_remainder: bool = False
    segment: int | None = None

    def runs(self, start: int, length: int | None, count: int) -> Iterator[tuple[int, int, int]]:
        """Yields runs of batches of equal size, up to `count` batches in all.

        Args:
          start: examples before the first batch.
          length: examples in the sequence, or None if it has no end.
          count: batches wanted.

        Yields:
          (start, batches, rows of each).
        """
        if self._yields_nothing:
            return
        while count > 0 and (length is None or start < length):
            end = self._segment_end(start, length)
            batches = count if end is None else min(count, (end - start) // self.size)
            if batches:
                yield start, batches, self.size
                start += batches * self.size
                count -= batches
            elif end is not None:
                if not self.drop_remainder:
                    yield start, 1, end - start
                    count -= 1
                start = end

    def num_batches(self, start: int, length: int | None) -> int | None:
        """Returns how many batches come after the first `start` examples."""
        if self._yields_nothing:
            return 0
        if length is None:
            return None
        if start >= length:
            return 0
        segment = length if self.segment is None else self.segment
        first_end = self._segment_end(start, length)
        assert first_end is not None
        whole, rest = divmod(length - first_end, segment)
        return self._in(first_end - start) + whole * self._in(segment) + self._in(rest)

    @property
    def _yields_nothing(self) -> bool:
        return self.drop_remainder and self.segment is not None and self.segment < self.size

    def _segment_end(self, start: int, length: int | None) -> int | None:
        if self.segment is None:
            return length
        end = (start // self.segment + 1) * self.segment
        return end if length is None else min(end, length)

    def _in(self, examples: int) -> int:
        return examples // self.size if self.drop_remainder else -(-examples // self.size)
