"""What asks a run from outside to stop: it does so behind the loop that runs."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from hooks.base import Hook
from hooks.signals import SignalHandlers
from hooks.stacks import all_stacks
from hooks.watchers import PreemptionWatcher, poll

logger = logging.getLogger(__name__)

PREEMPTED_EXIT_CODE = 128 + signal.SIGTERM
"""Of a script that was preempted: 143, what shells and schedulers know as ended by SIGTERM."""

_JOIN_SECS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopNotice:
    """That a run has to end.

    Attributes:
      why: for the log, such as "SIGTERM was received".
      interrupt: whether the user wants it (Ctrl-C), and not the machine.
      error: what went wrong where the machine is watched, if that is why.
    """

    why: str
    interrupt: bool = False
    error: BaseException | None = None


class StopNotices:
    """Takes note, while it is entered, of SIGTERM, Ctrl-C and what `watchers` say.

    A second Ctrl-C raises KeyboardInterrupt at once. On another thread than the main one signals
    are not watched, and the log says so. One that is entered within another (an evaluation
    within a longer run) hears of all that the outer one hears of.

    Args:
      watchers: asked on threads of their own.
      grace_secs: what a preempted machine leaves: that long after such a notice the log gets the
        stacks of all threads, and the process ends with code 143. None leaves it all the time.
      exit_process: ends the process with a code; tests pass their own.

    Attributes:
      first: the first notice, or None.
    """

    _entered: ClassVar[list[StopNotices]] = []  # by the main thread, the innermost last

    def __init__(
        self,
        watchers: Sequence[PreemptionWatcher] = (),
        grace_secs: float | None = None,
        exit_process: Callable[[int], None] = os._exit,
    ):
        self.first: StopNotice | None = None
        self._watchers = tuple(watchers)
        self._grace_secs = grace_secs
        self._exit_process = exit_process
        self._listeners: list[Callable[[StopNotice], object]] = []
        self._outer: StopNotices | None = None
        self._signals = SignalHandlers(self._on_signal)
        self._over = threading.Event()
        # A SimpleQueue, since a signal handler may come in between anything.
        self._granted: queue.SimpleQueue[StopNotice | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> StopNotices:
        if self._entered:
            self._outer = self._entered[-1]
            self._outer.listen(self.give)
        if threading.current_thread() is threading.main_thread():
            self._entered.append(self)
            self._signals.install()
        elif self._outer is None:
            logger.info("SIGTERM and Ctrl-C are not watched: this is not the main thread.")
        for watcher in self._watchers:
            if self._outer is None or watcher not in self._outer._watchers:
                self._start(type(watcher).__name__, functools.partial(self._watch, watcher))
        if self._grace_secs is not None and (self._outer is None or not self._outer._grace_secs):
            self._start("grace period", self._end_after_grace)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._over.set()
        self._granted.put(None)
        self._signals.restore()
        if self in self._entered:
            self._entered.remove(self)
        if self._outer is not None:
            self._outer._listeners.remove(self.give)
        for thread in self._threads:
            thread.join(_JOIN_SECS)
            if thread.is_alive():
                logger.warning("%s still polls %g s later; left behind.", thread.name, _JOIN_SECS)
        if error is None:
            self._raise_failure()

    def give(self, notice: StopNotice) -> None:
        """Asks the run to stop; from any thread, or a signal handler. The first one counts."""
        if not notice.interrupt and notice.error is None:
            self._granted.put(notice)
        if self.first is None:
            self.first = notice
            for listener in tuple(self._listeners):
                listener(notice)

    def listen(self, listener: Callable[[StopNotice], object]) -> None:
        """Calls `listener` with the first notice: now, if there is one already. It must not wait,
        may be called again, and in a signal handler."""
        self._listeners.append(listener)
        if self.first is not None:
            listener(self.first)

    def stop_before(self, step: int) -> StopNotice | None:
        """Returns why the loop that would begin at `step` must not, or None. Asked once before
        each loop.

        Raises:
          Whatever a watcher raised, as itself.
        """
        self._raise_failure()
        return self.first

    def _raise_failure(self) -> None:
        if self.first is not None and self.first.error is not None:
            raise self.first.error

    def _on_signal(self, number: signal.Signals) -> None:
        interrupt = number is signal.SIGINT
        if interrupt and self.first is not None:
            raise KeyboardInterrupt
        self.give(StopNotice(why=f"{number.name} was received", interrupt=interrupt))

    def _start(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self, watcher: PreemptionWatcher) -> None:
        try:
            why = poll(watcher, self._over)
        except BaseException as failed:
            self.give(StopNotice(why=f"{type(watcher).__name__} failed", error=failed))
            return
        if why is not None:
            self.give(StopNotice(why=why))

    def _end_after_grace(self) -> None:
        if self._granted.get() is None or self._over.wait(self._grace_secs):
            return
        logger.critical(
            "The run has not ended %g s after the notice: the process ends now, and what is not in "
            "a checkpoint is lost. Its threads are at:\n%s",
            self._grace_secs,
            all_stacks(),
        )
        logging.shutdown()
        self._exit_process(PREEMPTED_EXIT_CODE)


class StopOnNoticeHook(Hook):
    """Stops the run before its next loop once there is a notice."""

    def __init__(self, notices: StopNotices):
        self._notices = notices

    def before_loop(self, step: int) -> str | None:
        notice = self._notices.stop_before(step)
        return None if notice is None else notice.why
