"""A bounded queue between two threads that either side can close."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueClosed(Exception):
    """The other side has closed the queue, for no error of its own."""


class ClosableQueue(Generic[T]):
    """Hands items from one thread to another in order, at most `maxsize` waiting between them.

    A queue ends in one of three ways. `finish` says that the last item has been put: the reader
    gets what is there, then None, or an error that came in place of the next item. `abandon` says
    that the reader wants no more: it gets None, and `put` raises. `close` says that all is over:
    both sides wake and raise. What is there is dropped by both of the latter.

    A main thread that waits in `put` or `get` still serves signals.

    Args:
      maxsize: items that may wait, at least 1.
      name: for messages.
    """

    def __init__(self, maxsize: int, name: str = "queue"):
        if maxsize < 1:
            raise ValueError(f"maxsize={maxsize} of queue '{name}' must be at least 1.")
        self.name = name
        self._maxsize = maxsize
        self._items: collections.deque[T] = collections.deque()
        self._changed = threading.Condition()
        self._finished = False
        self._abandoned = False
        self._closed = False
        self._last: BaseException | None = None  # in place of a next item
        self._error: BaseException | None = None

    def put(self, item: T) -> None:
        """Appends `item`; waits while the queue is full.

        Raises:
          QueueClosed: the queue was closed without an error, or abandoned.
          BaseException: the error that the queue was closed with.
          ValueError: `item` is None, which `get` keeps for the end.
          RuntimeError: `finish` was called before.
        """
        if item is None:
            raise ValueError(f"Queue '{self.name}' cannot hold None: it stands for the end.")
        with self._changed:
            self._changed.wait_for(lambda: self._over or len(self._items) < self._maxsize)
            self._raise_if_closed()
            if self._abandoned:
                raise QueueClosed(f"Nobody reads queue '{self.name}' any more.")
            if self._finished:
                raise RuntimeError(f"put on queue '{self.name}' after finish.")
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T | None:
        """Takes the oldest item, or returns None, now and ever after, once all is taken and
        `finish` was called, or `abandon`; waits while the queue is empty.

        Raises:
          QueueClosed: the queue was closed without an error.
          BaseException: the error that the queue was closed with, or finished.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._items)
            self._raise_if_closed()
            if self._abandoned:
                return None
            if not self._items:
                if self._last is not None:
                    raise self._last
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def finish(self, error: BaseException | None = None) -> None:
        """Says that nothing more will be put; if there is an `error`, the reader gets it behind
        the last item. Does nothing to a queue that is closed or abandoned."""
        with self._changed:
            if not self._over:
                self._finished = True
                self._last = error
                self._changed.notify_all()

    def abandon(self) -> None:
        """Says that nothing more will be taken, and wakes both sides. A main thread that reads may
        call it in a signal handler, whatever it was doing. Does nothing to a closed queue."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """Drops what is there and makes both sides raise `error`, or QueueClosed, at once.

        May be called from any thread, and again: the first call decides.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._error = error
            self._items.clear()
            self._changed.notify_all()

    def __len__(self) -> int:
        """Returns how many items wait."""
        return len(self._items)

    @property
    def ready(self) -> bool:
        """Whether `get` would return or raise at once."""
        return self._over or bool(self._items)

    @property
    def _over(self) -> bool:
        return self._closed or self._finished or self._abandoned

    def __iter__(self) -> Iterator[T]:
        """Yields items as `get` returns them, up to the end."""
        while (item := self.get()) is not None:
            yield item

    def _raise_if_closed(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise QueueClosed(f"Queue '{self.name}' is closed.")
