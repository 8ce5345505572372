"""Work done ahead of its use, on threads, in order."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

from input_pipeline.queue import QueueClosed


class Ahead:
    """Applies functions to items on threads of its own.

    Args:
      threads: how many.
      size: items that are worked on, or wait, ahead of the one that is needed.
    """

    def __init__(self, *, threads: int, size: int):
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="input")
        self._size = size

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
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
            if failure is not None:
                raise failure
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Drops what has not begun, waits for what has, and ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, function: Callable[[Any], Any], item: Any) -> Future[Any]:
        try:
            return self._pool.submit(function, item)
        except RuntimeError:  # the pool is shut down
            raise QueueClosed("The input is closed.") from None


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except CancelledError:
        raise QueueClosed("The input is closed.") from None
