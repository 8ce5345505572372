"""Work done ahead of its use, on threads, in order."""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from typing import Any

from input_pipeline.queue import QueueClosed

logger = logging.getLogger(__name__)

_JOIN_SECS = 5.0

_Task = tuple[Future[Any], Callable[[Any], Any], Any]


class Ahead:
    """Applies functions to items on threads of its own.

    Args:
      threads: how many.
      size: items that are worked on, or wait, ahead of the one that is needed.
    """

    # No ThreadPoolExecutor: it waits for ever, at the end of the process at the latest, for a
    # function that does not come back.

    def __init__(self, *, threads: int, size: int):
        self._size = size
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._unfinished: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"input_{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def map(self, function: Callable[[Any], Any], items: Iterator[Any]) -> Iterator[Any]:
        """Yields `function(item)` for each item, in order.

        An error, of the function or of `items`, is raised in its place in the order.
        """
        waiting: collections.deque[Future[Any]] = collections.deque()
        try:
            failure: Exception | None = None
            while failure is None:
                try:
                    item = next(items)
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
                    break
                waiting.append(self._submit(function, item))
                if len(waiting) > self._size:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
            if failure is not None:
                raise failure
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Drops what has not begun, wakes who waits for a result, and ends the threads.

        A function that does not come back in seconds is left behind; the log says so.
        """
        with self._lock:
            self._closed = True
            unfinished = list(self._unfinished)
        for future in unfinished:
            if not future.cancel():
                _settle(future.set_exception, QueueClosed("The input is closed."))
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECS)
            if thread.is_alive():
                logger.warning(
                    "Thread %s of the input is still in user code %g s after its end; left behind.",
                    thread.name,
                    _JOIN_SECS,
                )

    def _submit(self, function: Callable[[Any], Any], item: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise QueueClosed("The input is closed.")
            self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        self._tasks.put((future, function, item))
        return future

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function, item = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function(item)
            except BaseException as error:
                _settle(future.set_exception, error)
            else:
                _settle(future.set_result, result)
            del task, future, item  # not held while the thread waits


def _settle(setter: Callable[[Any], None], outcome: Any) -> None:
    # One that `close` has settled is not waited for any more.
    with contextlib.suppress(InvalidStateError):
        setter(outcome)
