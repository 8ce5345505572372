"""Threads that fail together: whose error the caller gets to see."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Any

from input_pipeline.queue import ClosableQueue, QueueClosed

logger = logging.getLogger(__name__)

_JOIN_SECS = 5.0

_CANCELLED = (concurrent.futures.CancelledError, asyncio.CancelledError)


class Rendezvous:
    """Owns the threads of a run, and raises the root cause when any part of it fails.

    Used as a context manager around the run. The first error of a thread, or of the body,
    closes everything that was registered, which wakes whoever waits on it. On exit all
    threads are joined, and the error that explains the others is raised in the caller's
    thread: a closed queue, or work that was cancelled, never wins over what was the reason.
    Further errors become its notes.
    Something registered is closed once, by whichever thread fails first, or at the end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: list[tuple[str, BaseException]] = []
        self._closers: list[Callable[[BaseException | None], None]] = []
        self._queues: list[ClosableQueue[Any]] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._body_over = threading.Event()
        self._ended_well = False

    def on_close(self, close: Callable[[BaseException | None], None]) -> None:
        """Registers what to close, with the error or None, when the run ends or fails: at
        once if it has failed already."""
        with self._lock:
            if not self._closed:
                self._closers.append(close)
                return
            error = self._errors[0][1] if self._errors else None
        close(error)

    def owns(self, queue: ClosableQueue[Any]) -> None:
        """Registers a queue of the run, which is closed with it."""
        self._queues.append(queue)
        self.on_close(queue.close)

    def waiting(self) -> list[str]:
        """Returns how many items wait in each queue, for messages."""
        return [f"{queue.name} holds {len(queue)}" for queue in self._queues]

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The threads of the run."""
        return tuple(self._threads)

    def wait_for_body(self, timeout_secs: float) -> bool:
        """Waits until what runs inside of the context manager has ended or failed; says whether
        it has."""
        return self._body_over.wait(timeout_secs)

    def fail(self, where: str, error: BaseException) -> None:
        """Ends the run with `error`, found by `where`."""
        with self._lock:
            self._errors.append((where, error))
        self._close(error)

    def spawn(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Starts a thread that belongs to the run."""
        thread = threading.Thread(target=self._run, args=(name, target), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _run(self, name: str, target: Callable[[], None]) -> None:
        try:
            target()
        except QueueClosed:
            pass  # whoever closed the queue has said why, or the run is over
        except BaseException as error:
            if self._ended_well:
                # What was cut short may complain; nobody waits for it any more.
                logger.warning("Thread %s failed after the run had ended.", name, exc_info=error)
            else:
                self.fail(name, error)

    def _close(self, error: BaseException | None) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for close in self._closers:
            try:
                close(error)
            except BaseException as failed:  # the others must be closed all the same
                with self._lock:
                    self._errors.append(("close", failed))

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._body_over.set()
        if error is not None:
            self.fail("main", error)
        with self._lock:
            self._ended_well = not self._errors
        self._close(None)
        for thread in self._threads:
            thread.join(_JOIN_SECS)
            if thread.is_alive():
                # A thread inside the user's code cannot be stopped from outside; it holds no
                # lock of ours, and as a daemon it does not keep the process alive.
                logger.warning(
                    "Thread %s is still in user code %g s after the run ended; left behind.",
                    thread.name,
                    _JOIN_SECS,
                )
        self._raise_root_cause(error)

    def _raise_root_cause(self, raised: BaseException | None) -> None:
        with self._lock:
            causes = [item for item in self._errors if not isinstance(item[1], QueueClosed)]
        if not causes:
            return
        causes.sort(key=lambda item: isinstance(item[1], _CANCELLED))  # stable: the first one wins
        root = causes[0][1]
        seen = {id(root)}
        for where, other in causes[1:]:
            if id(other) not in seen:
                seen.add(id(other))
                root.add_note(f"Thread {where!r} failed too: {type(other).__name__}: {other}")
        if root is not raised:
            raise root from root.__cause__
