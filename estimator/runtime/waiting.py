"""Waits that end: by a result, by a deadline, or because the session is closed."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from estimator.runtime.errors import CancelledError, DeadlineExceededError, SessionClosedError
from estimator.runtime.workers import Workers

logger = logging.getLogger("estimator")

_JOIN_SECS = 5.0


class Deadline:
    """A moment after which nobody waits any more.

    Args:
      timeout_secs: from now on; None or infinite for no such moment.
    """

    def __init__(self, timeout_secs: float | None):
        self.timeout_secs = timeout_secs
        self._at = math.inf if timeout_secs is None else time.monotonic() + timeout_secs

    def remaining(self) -> float | None:
        """Returns the seconds that are left, at least 0; None if there is no end."""
        if self._at == math.inf:
            return None
        return max(0.0, self._at - time.monotonic())


def checked_timeout(name: str, timeout_secs: float | None) -> float | None:
    """Returns `timeout_secs` if it is None or a positive number.

    Raises:
      ValueError: it is neither.
    """
    if timeout_secs is None:
        return None
    number = isinstance(timeout_secs, int | float) and not isinstance(timeout_secs, bool)
    if not number or not timeout_secs > 0:
        raise ValueError(
            f"{name}={timeout_secs!r} must be a positive number of seconds, or None to wait as "
            "long as it takes."
        )
    return timeout_secs


class Waits:
    """All that the callers of one session wait for, so that closing it wakes every one.

    Args:
      session: its name, for messages.
    """

    def __init__(self, session: str):
        self._session = session
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._closed = False
        self._workers = Workers(f"{session} worker")

    def check_open(self) -> None:
        """Raises SessionClosedError once the session is closed."""
        if self._closed:
            raise self.closed_error()

    def closed_error(self) -> SessionClosedError:
        """Returns what a call on a closed session raises."""
        return SessionClosedError(f"{self._session} is closed. Make another Session.")

    def promise(self) -> Future[Any]:
        """Returns something to wait for, to be given to `settle` later.

        Raises:
          SessionClosedError: the session is closed.
        """
        promise: Future[Any] = Future()
        with self._lock:
            self.check_open()
            self._pending.add(promise)
        return promise

    def settle(self, promise: Future[Any], work: Callable[[], Any]) -> None:
        """Does `work`; what it returns or raises goes to those who wait for `promise`."""
        try:
            result = work()
        except BaseException as error:
            if self._withdraw(promise):
                promise.set_exception(error)
            else:
                logger.warning("Failed after %s was closed.", self._session, exc_info=error)
        else:
            if self._withdraw(promise):
                promise.set_result(result)

    def _withdraw(self, promise: Future[Any]) -> bool:
        """Says whether it is still open what becomes of `promise`; from now on it is not."""
        with self._lock:
            pending = promise in self._pending
            self._pending.discard(promise)
        return pending

    def wait(self, promise: Future[Any], deadline: Deadline, what: str) -> Any:
        """Returns or raises what `promise` was settled with.

        Args:
          promise: from `promise`.
          deadline: until when to wait.
          what: is waited for, for messages.

        Raises:
          DeadlineExceededError: it was not settled in time.
          CancelledError: the session was closed before.
        """
        try:
            return promise.result(deadline.remaining())
        except TimeoutError:
            if promise.done():  # and what it holds may be a TimeoutError of the work itself
                return promise.result()
        promise.add_done_callback(self._late)
        raise DeadlineExceededError(
            f"{what} took longer than timeout_secs={deadline.timeout_secs:g}. It goes on, but its "
            "result is dropped. Allow more time, or look for what holds it up."
        )

    def run(self, work: Callable[[], Any], deadline: Deadline, what: str) -> Any:
        """Does `work` on a thread of the session, and waits for it; see `wait`.

        The caller's own thread would not do: to hand a program to a CPU device may take as
        long as the program itself.
        """
        if deadline.remaining() == 0:
            raise DeadlineExceededError(
                f"timeout_secs={deadline.timeout_secs:g} was over before {what} began. Compile "
                "ahead with make_callable, or allow more time."
            )
        promise = self.promise()
        self._workers.submit(lambda: self.settle(promise, work))
        return self.wait(promise, deadline, what)

    def _late(self, promise: Future[Any]) -> None:
        error = promise.exception()
        if error is not None and not isinstance(error, CancelledError):
            logger.warning("Failed after its deadline in %s.", self._session, exc_info=error)

    def cancel(self) -> bool:
        """Raises CancelledError where somebody waits, and lets nobody wait any more.

        Returns:
          False if this was done before.
        """
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            pending, self._pending = self._pending, set()
        for promise in pending:
            promise.set_exception(
                CancelledError(f"{self._session} was closed before this was finished.")
            )
        return True

    def join(self) -> None:
        """Ends the threads; of those that a device keeps busy for long, warns."""
        self._workers.close(_JOIN_SECS)
