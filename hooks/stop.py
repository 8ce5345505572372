"""Stops a run at an exact step, or after a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from hooks import checks
from hooks.base import Hook, HookContext, LoopView


class StopAtStepHook(Hook):
    """Stops the run at an exact global step; give one of the two arguments.

    A run that starts at or past `last_step` takes no step.

    Args:
      num_steps: steps to run, counted from where the run starts.
      last_step: global step at which to stop.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None):
        if (num_steps is None) == (last_step is None):
            raise ValueError(
                f"StopAtStepHook needs num_steps or last_step, and not both; got "
                f"num_steps={num_steps!r} and last_step={last_step!r}."
            )
        self._num_steps = None if num_steps is None else checks.positive_int("num_steps", num_steps)
        self._last_step = 0 if last_step is None else checks.positive_int("last_step", last_step)

    def begin(self, context: HookContext) -> str | None:
        if self._num_steps is not None:
            self._last_step = context.step + self._num_steps
        return self._reason(context.step)

    def next_step(self, step: int) -> int:
        return max(self._last_step, step + 1)

    def after_loop(self, view: LoopView) -> str | None:
        return self._reason(view.step)

    def _reason(self, step: int) -> str | None:
        if step < self._last_step:
            return None
        return f"StopAtStepHook: its last step is {self._last_step}"


class StopAfterSecsHook(Hook):
    """Stops the run at the end of the first loop after a time, such as a job's time limit.

    Each process goes by its own clock; of a job of many processes, the first whose time is over
    stops all, before the same step.

    Args:
      secs: from the beginning of the run, compilation included.
      clock: returns monotonic seconds; tests pass their own.
    """

    def __init__(self, secs: float, clock: Callable[[], float] = time.monotonic):
        self._secs = checks.positive_secs("secs", secs)
        self._clock = clock
        self._began = clock()

    def begin(self, context: HookContext) -> None:
        self._began = self._clock()

    def after_loop(self, view: LoopView) -> str | None:
        if self._clock() - self._began >= self._secs:
            return f"StopAfterSecsHook: {self._secs} s have passed"
        return None
