"""Ends a run that hangs, and says where it does."""

from __future__ import annotations

import enum
import logging
import os
import threading
import time
from collections.abc import Callable

from estimator.errors import Rendezvous
from hooks.stacks import all_stacks, place_of

logger = logging.getLogger(__name__)

WATCHDOG_EXIT_CODE = 124
"""Of a process that hangs where no error can be raised: that of `timeout`."""

_LOOKS = 4  # for each period: a run that hangs is found at most a quarter of it late


class Doing(enum.Enum):
    """What the thread of a run does next, and what it means if that lasts too long."""

    INPUT = "input_fn has not given a batch"
    DEVICES = "The devices have not finished what they were given"
    HOST = "host_call, or what takes the results of evaluate or predict, has not come back"
    HOOKS = "A hook, or the checkpoint that it waits for, has not come back"


class WatchdogError(TimeoutError):
    """A run has made no progress for `RunConfig.watchdog_secs`."""


class Watchdog:
    """Raises in a run that makes no progress.

    The error ends every wait of the run for one of its queues: for input, and for its own threads.
    A thread that waits for the devices, or is in a function of the user's, cannot be woken from
    outside: the error is raised when it comes back, and if it does not within the same time again,
    the process ends with `WATCHDOG_EXIT_CODE`.

    The thread that makes it is watched, from its first `begins` on, until `rendezvous` ends.

    Args:
      secs: without progress; None for no watchdog.
      rendezvous: of the run.
      is_excused: whether the run does now what takes its time, or is watched elsewhere: a program
        is compiled, or another process has not come to a meeting.
      clock: returns seconds; tests pass their own.
      exit_process: ends the process with a code; tests pass their own.
    """

    def __init__(
        self,
        secs: float | None,
        rendezvous: Rendezvous,
        is_excused: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        exit_process: Callable[[int], object] = os._exit,
    ):
        self._secs = secs
        self._is_excused = is_excused
        self._clock = clock
        self._exit_process = exit_process
        self._since = clock()
        self._doing: Doing | None = None
        self._rendezvous = rendezvous
        self._caller = threading.current_thread()
        if secs is not None:
            over = threading.Event()
            rendezvous.on_close(lambda error: over.set())
            rendezvous.spawn("watchdog", lambda: self._look_until(over, secs))

    def begins(self, doing: Doing) -> None:
        """Says that there was progress, and what is done next."""
        self._since = self._clock()
        self._doing = doing

    def rests(self) -> None:
        """Says that what is done next may take as long as it likes."""
        self._doing = None

    def check(self) -> None:
        """Raises WatchdogError, and logs where all threads are, if there is no progress."""
        doing, since = self._doing, self._since
        if doing is None or self._secs is None:
            return
        if self._is_excused():
            self._since = self._clock()
            return
        if self._clock() - since < self._secs:
            return
        error = WatchdogError(f"{doing.value} for {self._secs:g} s; {self._place(doing)}.")
        waiting = ", ".join(self._rendezvous.waiting())
        logger.critical("%s\nQueues: %s.\n%s", error, waiting, all_stacks())
        raise error

    def _look_until(self, over: threading.Event, secs: float) -> None:
        try:
            while not over.wait(secs / _LOOKS):
                self.check()
        except WatchdogError as error:
            self._rendezvous.fail("watchdog", error)
            self.end_unless_back()

    def end_unless_back(self) -> None:
        """Ends the process if the run, which has failed, does not come back to hear of it."""
        assert self._secs is not None
        if self._rendezvous.wait_for_body(self._secs):
            return
        logger.critical(
            "The run has not come back %g s after the error: the process ends now. Its threads are "
            "at:\n%s",
            self._secs,
            all_stacks(),
        )
        logging.shutdown()
        self._exit_process(WATCHDOG_EXIT_CODE)

    def _place(self, doing: Doing) -> str:
        others = [t for t in threading.enumerate() if t is not self._caller]
        if doing is Doing.INPUT:
            # The threads on which Dataset.map runs functions are named "input_0" and so on.
            reading = [t for t in others if t.name == "infeed"]
            helping = [t for t in others if t.name.startswith("input")]
            return f"its thread is at {place_of([*reading, *helping])}"
        if doing is Doing.HOST:
            own = self._rendezvous.threads
            delivering = [t for t in own if t.name not in ("infeed", "watchdog")]
            return f"its thread is at {place_of(delivering)}"
        return f"the run is at {place_of([self._caller])}"
