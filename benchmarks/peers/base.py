"""What the process of a contestant asks of it, and the timing that peers share."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any


class Peer:
    """A contestant that stays for many measurements. Compiles all it needs when it is made."""

    def measure(self, secs: float) -> float:
        """Returns steps or examples per second, over about `secs` seconds."""
        raise NotImplementedError

    def close(self) -> None:
        """Removes what was written."""


class FixedWork(Peer):
    """A peer whose measurement is one and the same piece of work, repeated."""

    work: int
    """Steps or examples of one `run`."""

    def run(self) -> None:
        """Does it, to its end."""
        raise NotImplementedError

    def measure(self, secs: float) -> float:
        return self.work * repeat(self.run, secs)


def repeat(run: Callable[[], object], secs: float) -> float:
    """Calls `run` for about `secs` seconds, at least once; returns the calls per second."""
    started = time.perf_counter()
    calls = 0
    while True:
        run()
        calls += 1
        elapsed = time.perf_counter() - started
        if elapsed >= secs:
            return calls / elapsed


def streamed(results: Generator[Any], rows_of: Callable[[Any], int], secs: float) -> float:
    """Takes results for about `secs` seconds, then closes them; returns the rows per second.

    Counts from the time that they flow: at both ends of the interval as much is under way, so
    that it contains as much work as rows.
    """
    warm_up_secs = secs / 10
    rows = 0
    begin = started = None
    for result in results:
        now = time.perf_counter()
        if begin is None:
            begin = now
        if started is None:
            if now >= begin + warm_up_secs:
                started = now
            continue
        rows += rows_of(result)
        if now >= started + secs:
            results.close()
            return rows / (now - started)
    raise RuntimeError("The results ended before the time was over.")
