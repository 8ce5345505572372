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

    A queue ends in one of two ways. `finish` says that the last item has been put: the reader
    gets what is there, then None. `close` says that all is over: what is there is dropped, and
    both sides wake and raise.

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
        self._closed = False
        self._error: BaseException | None = None

    def put(self, item: T) -> None:
        """Appends `item`; waits while the queue is full.

        Raises:
          QueueClosed: the queue was closed without an error.
          BaseException: the error that the queue was closed with.
          ValueError: `item` is None, which `get` keeps for the end.
          RuntimeError: `finish` was called before.
        """
        if item is None:
            raise ValueError(f"Queue '{self.name}' cannot hold None: it stands for the end.")
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._finished or len(self._items) < self._maxsize
            )
            self._raise_if_closed()
            if self._finished:
                raise RuntimeError(f"put on queue '{self.name}' after finish.")
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T | None:
        """Takes the oldest item, or returns None, now and ever after, once all is taken and
        `finish` was called; waits while the queue is empty.

        Raises:
          QueueClosed: the queue was closed without an error.
          BaseException: the error that the queue was closed with.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._finished or self._items)
            self._raise_if_closed()
            if not self._items:
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def finish(self) -> None:
        """Says that nothing more will be put. Does nothing to a closed queue."""
        with self._changed:
            self._finished = True
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
        return self._closed or self._finished or bool(self._items)

    def __iter__(self) -> Iterator[T]:
        """Yields items as `get` returns them, up to the end."""
        while (item := self.get()) is not None:
            yield item

    def _raise_if_closed(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise QueueClosed(f"Queue '{self.name}' is closed.")
