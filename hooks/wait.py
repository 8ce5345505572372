"""Holds a run back until another one has come far enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hooks import checks
from hooks.base import Hook, HookContext

logger = logging.getLogger(__name__)


class GlobalStepWaiterHook(Hook):
    """Makes a run wait, before its first loop, until another run has reached a global step.

    For jobs that must not all begin at once, or of which one learns from what another has
    trained. A signal to stop ends the wait.

    Args:
      wait_until_step: the step to wait for.
      read_step: returns the global step of the other run, or None if it has none yet.
      timeout_secs: how long to wait; None waits for ever.
      poll_secs: time between two looks.
      sleep: waits so many seconds; tests pass their own.
      clock: returns monotonic seconds; likewise.

    Raises:
      TimeoutError: from the run, if the step is not reached in time.
    """

    def __init__(
        self,
        wait_until_step: int,
        read_step: Callable[[], int | None],
        *,
        timeout_secs: float | None = None,
        poll_secs: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._wait_until_step = checks.positive_int("wait_until_step", wait_until_step)
        self._read_step = read_step
        if timeout_secs is not None:
            checks.positive_secs("timeout_secs", timeout_secs)
        self._timeout_secs = timeout_secs
        self._poll_secs = checks.positive_secs("poll_secs", poll_secs)
        self._sleep = sleep
        self._clock = clock

    def begin(self, context: HookContext) -> None:
        began, told = self._clock(), False
        while not context.stop_requested():
            step = self._read_step()
            if step is not None and step >= self._wait_until_step:
                if told:
                    logger.info("The other run is at step %d: this one goes on.", step)
                return
            if not told:
                told = True
                logger.info(
                    "Waiting until the other run, now at step %s, has reached step %d.",
                    step,
                    self._wait_until_step,
                )
            waited = self._clock() - began
            if self._timeout_secs is not None and waited >= self._timeout_secs:
                raise TimeoutError(
                    f"GlobalStepWaiterHook: after {waited:.0f} s the other run is at step {step} "
                    f"and not yet at {self._wait_until_step}. See whether it is alive, or give "
                    "it a larger timeout_secs."
                )
            self._sleep(self._poll_secs)
