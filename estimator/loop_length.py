"""How many steps a loop has: a number, or as many as a stretch of time holds."""

from __future__ import annotations

import re
from typing import Protocol

from hooks.checks import positive_int

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_AUTO_SECS = 1.0
_FIRST_STEPS = 1
_GROWTH = 1000


class LoopLength(Protocol):
    """Says how long the next loop is, and learns how long the last one took."""

    @property
    def steps(self) -> int:
        """Steps of the next loop."""
        ...

    @property
    def learning(self) -> bool:
        """Whether the next loop should be waited for, so that its time is its own."""
        ...

    def observe(self, steps: int, secs: float) -> None:
        """Takes note that a loop of `steps` steps took `secs` seconds."""
        ...


class FixedLength:
    """Loops of a given number of steps."""

    learning = False

    def __init__(self, steps: int):
        self.steps = steps

    def observe(self, steps: int, secs: float) -> None:
        """Learns nothing: the length is given."""


class TimedLength:
    """Loops that last about `secs` seconds, by what the steps before took.

    The first loop is one step, and its time is not used: it has the compilation in it. Each
    later loop is as long as the time per step of the one before promises, but at most a
    thousand times longer than that one, since a short loop overrates the time of a step and
    is corrected by the next. A step time that changes is followed within one loop.
    """

    def __init__(self, secs: float):
        self.secs = secs
        self.steps = _FIRST_STEPS
        self._observed = 0

    @property
    def learning(self) -> bool:
        return self._observed < 4

    def observe(self, steps: int, secs: float) -> None:
        self._observed += 1
        if self._observed == 1:
            return
        per_step = max(secs, 1e-9) / steps
        self.steps = max(1, min(round(self.secs / per_step), steps * _GROWTH))


def loop_length(value: int | str) -> LoopLength:
    """Returns the length that `iterations_per_loop` asks for.

    Args:
      value: an int; a duration such as "30s", "5m", "1h", "500ms"; or "auto", which is about
        a second: long enough for the host's share to vanish, short enough that hooks,
        progress and signals are served within it.

    Raises:
      TypeError: neither an int nor a string.
      ValueError: a number below one, or a string of another form.
    """
    if not isinstance(value, str):
        return FixedLength(positive_int("iterations_per_loop", value))
    if value == "auto":
        return TimedLength(_AUTO_SECS)
    match = _DURATION.fullmatch(value)
    if match is None or float(match[1]) == 0:
        raise ValueError(
            f"iterations_per_loop={value!r} is not understood. Give a positive int, a duration "
            "such as '30s', '5m', '1h' or '500ms', or 'auto'."
        )
    return TimedLength(float(match[1]) * _UNITS[match[2]])
