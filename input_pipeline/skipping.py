"""Says how far a reader is that finds its place by reading what comes before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_PROGRESS_SECS = 10.0


class SkipReport:
    """Logs a line every ten seconds of skipping.

    Args:
      total: elements to skip.
      noun: what they are.
      clock: returns monotonic seconds.
    """

    def __init__(self, total: int, noun: str, clock: Callable[[], float] = time.monotonic):
        self._total = total
        self._noun = noun
        self._clock = clock
        self._last = clock()

    def skipped(self, count: int) -> None:
        """Called after each element with how many have been skipped."""
        now = self._clock()
        if now - self._last > _PROGRESS_SECS:
            self._last = now
            logger.info("Skipped %d of %d %s of the input.", count, self._total, self._noun)
