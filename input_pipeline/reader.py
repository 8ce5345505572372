"""What reads the batches of one kind of input, one after the other; a source stacks them."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterator
from typing import Any

from input_pipeline.queue import QueueClosed
from input_pipeline.source import Position


class BatchReader(abc.ABC):
    """Reads batches in order and knows where it stands.

    One thread uses a reader at a time. `close` may come from another one.

    Attributes:
      seeks_by_reading: whether `seek` reads and drops what comes before, and so counts on the
        data to come in the same order again.
      shapes_vary: whether trailing shapes may differ between batches, on purpose.
      common_position: whether the position is that of all shards, see `Source`.
    """

    seeks_by_reading: bool = False
    shapes_vary: bool = False
    common_position: bool = False

    @abc.abstractmethod
    def next(self) -> tuple[Any] | None:
        """Returns the next batch, `(features, labels)` or features with leaves `[rows, ...]`, in
        a tuple of one; None at the end."""

    @abc.abstractmethod
    def position(self) -> Position:
        """Returns where the reader stands: after the last batch that `next` returned."""

    @abc.abstractmethod
    def seek(self, position: Position) -> None:
        """Continues at `position`. Raises PositionError if that is of another input."""

    def num_batches(self) -> int | None:
        """Returns how many batches are left, or None if that is unknown or endless."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Releases what the reader holds. `next` raises QueueClosed from then on."""


class OwnedIterator:
    """An iterator that is opened at the first read, and may be closed while it is being read.

    Args:
      open_iterator: returns the iterator. Its `close`, if it has one, is called once: by
        whoever calls `close`, or by the reading thread right after the read that this came into.
      library: name of the package that the iterator is of, if it calls functions of the user's.
    """

    def __init__(self, open_iterator: Callable[[], Iterator[Any]], *, library: str | None = None):
        self._library = library
        self._open = open_iterator
        self._iterator: Iterator[Any] | None = None
        self._reading = threading.Lock()
        self._closed = threading.Event()

    def next(self) -> tuple[Any] | None:
        """Returns the next element in a tuple of one, or None at the end.

        Raises:
          QueueClosed: `close` was called.
          RuntimeError: a function of the user's, called by `map`, `filter` or the library,
            raised StopIteration, which would otherwise pass for the end of the data.
        """
        try:
            with self._reading:
                if self._closed.is_set():
                    raise QueueClosed("The input is closed.")
                if self._iterator is None:
                    self._iterator = self._open()
                return self._next_of(self._iterator)
        finally:
            if self._closed.is_set():
                self._release()

    def restart(self) -> None:
        """Closes the iterator; the next read opens another one."""
        self._release()

    def close(self) -> None:
        """Closes the iterator for good, at once or as soon as it is not being read."""
        self._closed.set()
        self._release()

    def _release(self) -> None:
        # A generator cannot be closed while it runs. If it does, its reader gets here next.
        if not self._reading.acquire(blocking=False):
            return
        try:
            iterator, self._iterator = self._iterator, None
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
        finally:
            self._reading.release()

    def _next_of(self, iterator: Iterator[Any]) -> tuple[Any] | None:
        try:
            return (next(iterator),)
        except StopIteration as stop:
            caller = None
            if _calls_functions(iterator) and _first_frame_is_a_function(stop):
                caller = f"{type(iterator).__name__}()"
            elif self._library is not None and _last_frame_is_outside(stop, self._library):
                caller = self._library
            if caller is not None:
                raise RuntimeError(
                    f"A function called by {caller} in the input raised StopIteration, which is "
                    "not the end of the data."
                ) from stop
            return None


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a function of the user's returns.

    Raises:
      RuntimeError: it raised StopIteration, which would otherwise pass for the end of the data.
      Whatever else it raises, as itself.
    """
    try:
        return function(*arguments)
    except StopIteration as stop:
        name = getattr(function, "__qualname__", repr(function))
        raise RuntimeError(
            f"The function {name} of the dataset raised StopIteration, which is not the end of "
            "the data."
        ) from stop


def _calls_functions(iterator: Iterator[Any]) -> bool:
    """Says whether the iterator is one of Python's own that end where a function raises."""
    return type(iterator) in (map, filter, zip) or type(iterator).__module__ == "itertools"


def _first_frame_is_a_function(stop: StopIteration) -> bool:
    below = stop.__traceback__.tb_next if stop.__traceback__ else None
    # An iterator written in Python, below `map`, ends in its own `__next__`.
    return below is not None and below.tb_frame.f_code.co_name != "__next__"


def _last_frame_is_outside(stop: StopIteration, library: str) -> bool:
    below = stop.__traceback__.tb_next if stop.__traceback__ else None
    if below is None:
        return False
    while below.tb_next is not None:
        below = below.tb_next
    module = below.tb_frame.f_globals.get("__name__", "")
    name = below.tb_frame.f_code.co_name
    return name != "__next__" and module.partition(".")[0] != library
