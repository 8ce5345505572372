"""How much a session has done."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counters:
    """A snapshot; all but `programs` only ever grow.

    Attributes:
      programs: compiled programs that the session holds now.
      hits: look-ups that found their program, compiled or being compiled. A `Program` that is
        fed like the last time looks nothing up.
      misses: look-ups that had to compile.
      runs: programs handed to the devices.
      bytes_in: bytes of all they were fed, wherever it lay.
      bytes_out: bytes of all they returned.
    """

    programs: int
    hits: int
    misses: int
    runs: int
    bytes_in: int
    bytes_out: int


class Meter:
    """Counts the runs of one program, at less than the cost of a lock.

    Args:
      bytes_in: of one run.
      bytes_out: of one run.

    Attributes:
      ran: counts a run, from any thread.
    """

    def __init__(self, bytes_in: int, bytes_out: int):
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        count = itertools.count()
        self.ran: Callable[[], int] = count.__next__
        self._read_lock = threading.Lock()
        self._reads = 0

    def runs(self) -> int:
        """Returns the runs that were counted so far."""
        with self._read_lock:
            # To read the count is to count, so what was read before is taken off again.
            runs = self.ran() - self._reads
            self._reads += 1
        return runs


class Tally:
    """Counts for a session; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hits = self._misses = 0
        self._meters: list[Meter] = []

    def looked_up(self, hit: bool) -> None:
        """Counts a look-up."""
        with self._lock:
            if hit:
                self._hits += 1
            else:
                self._misses += 1

    def meter(self, bytes_in: int, bytes_out: int) -> Meter:
        """Returns a meter for a program; its runs are counted even after the program is gone."""
        meter = Meter(bytes_in, bytes_out)
        with self._lock:
            self._meters.append(meter)
        return meter

    def snapshot(self, programs: int) -> Counters:
        """Returns what was counted so far."""
        with self._lock:
            runs = [(meter.runs(), meter) for meter in self._meters]
            return Counters(
                programs=programs,
                hits=self._hits,
                misses=self._misses,
                runs=sum(count for count, _ in runs),
                bytes_in=sum(count * meter.bytes_in for count, meter in runs),
                bytes_out=sum(count * meter.bytes_out for count, meter in runs),
            )
