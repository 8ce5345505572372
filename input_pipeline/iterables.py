"""Readers that count: iterables of batches, and whatever can start at a batch by its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from input_pipeline.positions import check_same_input
from input_pipeline.reader import BatchReader, OwnedIterator
from input_pipeline.skipping import SkipReport
from input_pipeline.source import Position, PositionError


class CountingReader(BatchReader):
    """Reads an input that can be opened at any batch; its position is a number of batches.

    Args:
      open_at: returns an iterator over the batches from a number, from 0, on.
      batch_size: examples in a full batch.
      length: batches in all, or None if that is unknown or endless.
      library: name of the package that the iterators are of, if it calls functions of the user's.
    """

    def __init__(
        self,
        open_at: Callable[[int], Iterator[Any]],
        *,
        batch_size: int,
        length: int | None = None,
        library: str | None = None,
    ):
        self._batch_size = batch_size
        self._length = length
        self._batches = 0
        self._iterator = OwnedIterator(lambda: open_at(self._batches), library=library)

    def next(self) -> tuple[Any] | None:
        element = self._iterator.next()
        if element is not None:
            self._batches += 1
        elif self._length is not None and self._batches < self._length:
            raise RuntimeError(
                f"The input ended after {self._batches} of {self._length} batches. A function of "
                "the input may have raised StopIteration, which is not the end of the data."
            )
        return element

    def position(self) -> Position:
        return {"kind": "batches", "batch_size": self._batch_size, "batches": self._batches}

    def seek(self, position: Position) -> None:
        check_same_input(position, self.position())
        self._go_to(position["batches"])

    def num_batches(self) -> int | None:
        return None if self._length is None else self._length - self._batches

    def close(self) -> None:
        self._iterator.close()

    def _go_to(self, batches: int) -> None:
        if self._length is not None and batches > self._length:
            raise self._too_short(batches, self._length)
        if batches != self._batches:
            self._iterator.restart()
            self._batches = batches

    def _too_short(self, batches: int, length: int) -> PositionError:
        return PositionError(
            f"The saved position of the input is behind {batches} batches, this input has "
            f"{length}. Feed the input that was saved, or start it afresh."
        )


class IterableReader(CountingReader):
    """Reads an iterable of batches from its start; a position is found by skipping.

    Args:
      open_batches: returns an iterator over the batches.
      batch_size: examples in a full batch.
      reopens: whether `open_batches` may be called again to start over.
      length: batches in all, or None if that is unknown or endless.
      library: name of the package that the iterators are of, if it calls functions of the user's.
    """

    seeks_by_reading = True

    def __init__(
        self,
        open_batches: Callable[[], Iterator[Any]],
        *,
        batch_size: int,
        reopens: bool = True,
        length: int | None = None,
        library: str | None = None,
    ):
        super().__init__(
            lambda _: open_batches(), batch_size=batch_size, length=length, library=library
        )
        self._reopens = reopens

    def _go_to(self, batches: int) -> None:
        if batches < self._batches:
            if not self._reopens:
                raise PositionError(
                    f"The input is an iterator that has given {self._batches} batches and cannot "
                    f"go back to {batches}. Return an iterable or a generator function instead."
                )
            super()._go_to(0)
        report = SkipReport(batches, "batches")
        while self._batches < batches:
            if self.next() is None:
                raise self._too_short(batches, self._batches)
            report.skipped(self._batches)
