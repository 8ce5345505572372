"""The thread that reads the input, stacks it and puts it on the devices, ahead of the loop."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from estimator.batches import Batches, ResidentBatches, Stacked
from estimator.errors import Rendezvous
from estimator.input_partition import InputPartition
from input_pipeline import ClosableQueue, Position, QueueClosed, Source, Stack

_IN_FLIGHT = 2
_FILL_SECS = 1.0


class Padding(enum.Enum):
    """What becomes of the padding of a partial batch."""

    MASKED = "every batch has a mask: one program serves full and partial batches"
    MASKED_IF_ANY = "a mask comes only with stacks that have padding"
    CUT = "a partial batch goes alone, at its true size"
    KEPT = "padding is computed on and cut from the results"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive batches of one transfer, for one dispatch.

    Attributes:
      batches: the whole transfer, on the devices.
      start: first batch of the piece in it.
      stop: behind the last one.
      rows: `[stop - start]` real examples of each batch, on this process.
      examples: real examples of all of them, on all processes.
      position: where the input stands after the piece.
      steps_left: batches from the piece on to the end of the run, itself included, or None if
        their number is unknown.
      host_columns: what stayed on the host of each batch, see `Stack`.
    """

    batches: Stacked
    start: int
    stop: int
    rows: np.ndarray
    examples: int
    position: Position | None
    steps_left: int | None
    host_columns: Sequence[Mapping[str, np.ndarray]]

    @property
    def steps(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class _Run:
    """Consecutive batches of one transfer that can go into one dispatch.

    Attributes:
      batches: the transfer.
      first: the first of them in it.
      rows: real examples of each of them.
      positions: where the input stands after each of them.
      host_columns: what stayed on the host of each of them, see `Stack`.
    """

    batches: Stacked
    first: int
    rows: np.ndarray
    positions: Sequence[Position]
    host_columns: Sequence[Mapping[str, np.ndarray]] = ()


class Infeed:
    """Reads `source` on a thread; `take` hands out pieces of what is already on the devices.

    Args:
      source: read by the thread from now on, and closed when the run ends.
      rendezvous: owns the thread, and carries its errors.
      partition: where the batches go; None leaves them on the host.
      capacity: batches stacked in one transfer.
      limit: batches to read at most; None reads to the end.
      padding: what becomes of partial batches.
      labels: whether the model takes the labels too.
      table: (features, labels) on the devices, if `source` gives the numbers of its rows.
      patient: whether a transfer waits for all its batches, however long the input takes.
      fill_up: whether empty batches, `rows` 0, fill the last transfer up.
      one_size: whether batches can only be run whole: a partial one that would have to be cut is
        an error.
    """

    def __init__(
        self,
        source: Source,
        rendezvous: Rendezvous,
        partition: InputPartition | None,
        *,
        capacity: int,
        limit: int | None,
        padding: Padding,
        labels: bool = True,
        table: tuple[Any, Any] | None = None,
        patient: bool = False,
        fill_up: bool = False,
        one_size: bool = False,
    ):
        self._source = source
        self._partition = partition
        self._capacity = capacity
        self._limit = limit
        known = [n for n in (limit, source.num_batches()) if n is not None]
        self._left = min(known) if known else None
        self._padding = padding
        self._labels = labels
        self._table = table
        self._fill_secs = None if patient else _FILL_SECS
        self._fill_up = fill_up
        self._one_size = one_size
        self._queue: ClosableQueue[_Run] = ClosableQueue(_IN_FLIGHT, name="infeed")
        self._current: _Run | None = None
        self._offset = 0
        self._wait_secs = 0.0
        self._lap_start = time.monotonic()
        rendezvous.owns(self._queue)
        rendezvous.on_close(lambda error: source.close())
        rendezvous.spawn("infeed", self._pump)

    @property
    def ready(self) -> bool:
        """Whether `take` has something to return at once (the end of the input included)."""
        return self._left_in_transfer() > 0 or self._queue.ready

    def _left_in_transfer(self) -> int:
        return 0 if self._current is None else len(self._current.rows) - self._offset

    def wait(self) -> None:
        """Waits until `take` has something to return at once. Raises the error of the input as
        itself, behind all that was read before it."""
        if self._left_in_transfer() == 0:
            started = time.monotonic()
            self._current = self._queue.get()
            self._offset = 0
            self._wait_secs += time.monotonic() - started

    def offer(self, at_most: int | None = None) -> Piece | None:
        """Returns what `take` would return, if called next; without `at_most` all that is left of
        the transfer."""
        self.wait()
        if self._current is None:
            return None
        run = self._current
        begin, end = self._offset, len(run.rows)
        if at_most is not None:
            end = min(end, begin + at_most)
        rows = run.rows[begin:end]
        return Piece(
            batches=run.batches,
            start=run.first + begin,
            stop=run.first + end,
            rows=rows,
            examples=int(rows.sum()),
            position=run.positions[end - 1],
            steps_left=self._left,
            host_columns=run.host_columns[begin:end],
        )

    def take(self, at_most: int) -> Piece | None:
        """Returns the next piece, of 1 to `at_most` batches, or None at the end of the input.

        Waits until it is there. Raises the error of the input as itself, behind all that was read
        before it.
        """
        piece = self.offer(at_most)
        if piece is not None:
            self._offset += piece.steps
            if self._left is not None:
                self._left -= piece.steps
        return piece

    def abandon(self) -> None:
        """Ends the wait of `take`, now or later: the input has ended for it. Signal handlers may
        call it."""
        self._queue.abandon()

    def lap(self) -> tuple[float, float]:
        """Returns the seconds since the last call (or the start), and those of them that
        `take` waited for input."""
        now, start, waited = time.monotonic(), self._lap_start, self._wait_secs
        self._lap_start, self._wait_secs = now, 0.0
        return now - start, waited

    def _pump(self) -> None:
        for stack in self._stacks():
            for run in self._runs(stack):
                self._queue.put(run)

    def _stacks(self) -> Iterator[Stack]:
        """Yields what the input gives, and hands its end or its error on to the queue."""
        left = self._limit
        while left is None or left > 0:
            count = self._capacity if left is None else min(self._capacity, left)
            try:
                stack = self._source.read(count, capacity=self._capacity, fill_secs=self._fill_secs)
            except QueueClosed:
                raise
            except BaseException as error:
                self._queue.finish(error)  # the loop first trains on what was read before it
                return
            if stack is None:
                break
            if left is not None:
                left -= stack.steps
            yield _filled_up(stack, count) if self._fill_up else stack
        self._queue.finish()

    def _runs(self, stack: Stack) -> Iterator[_Run]:
        """Puts a stack on the devices, and yields it as what can be dispatched together."""
        rows, positions = stack.rows, stack.positions
        if self._padding is not Padding.CUT:
            batches = self._to_devices(stack, self._mask(stack))
            yield _Run(batches, 0, rows, positions, stack.host_columns)
            return
        full = rows == self._source.batch_size
        # All full batches share one transfer and one program, wherever partial ones stand.
        whole = self._to_devices(stack, None) if full.any() else None
        begin = 0
        while begin < stack.steps:
            if full[begin] and whole is not None:
                rest = np.flatnonzero(~full[begin:])
                end = begin + int(rest[0]) if rest.size else stack.steps
                yield _Run(whole, begin, rows[begin:end], positions[begin:end])
            else:
                end = begin + 1
                if self._one_size:
                    raise ValueError(
                        f"A batch has {rows[begin]} of {self._source.batch_size} examples, and "
                        "its padding cannot be masked here: a scalar loss, batch statistics, "
                        "mergeable metrics or host_call tensors for each example would count it. "
                        "Drop such batches (drop_remainder=True, or repeat()), or return losses "
                        "and metrics for each example, [batch]."
                    )
                partial = self._to_devices(_partial_batch(stack, begin), None)
                yield _Run(partial, 0, rows[begin:end], positions[begin:end])
            begin = end

    def _mask(self, stack: Stack) -> np.ndarray | None:
        if self._padding is Padding.KEPT:
            return None
        capacity, batch_size = jax.tree.leaves(stack.features)[0].shape[:2]
        if self._padding is Padding.MASKED_IF_ANY and (stack.rows == batch_size).all():
            return None
        rows = np.zeros(capacity, np.int32)
        rows[: stack.steps] = stack.rows
        return np.arange(batch_size) < rows[:, None]

    def _to_devices(self, stack: Stack, mask: np.ndarray | None) -> Stacked:
        batches = Batches(stack.features, stack.labels if self._labels else None, mask)
        if self._partition is None:  # somebody else will
            return batches
        if self._table is None:
            return self._partition.put(self._partition.packed(batches))
        placed = self._partition.put(batches)
        features, labels = self._table
        table = features, labels if self._labels else None
        return ResidentBatches(table, rows=placed.features, mask=placed.mask)


def _filled_up(stack: Stack, steps: int) -> Stack:
    """Returns the stack with batches of no real example up to `steps`."""
    missing = steps - stack.steps
    if not missing:
        return stack
    for leaf in jax.tree.leaves((stack.features, stack.labels)):
        leaf[stack.steps :] = 0  # what was there before may be a NaN
    return dataclasses.replace(
        stack,
        rows=np.append(stack.rows, np.zeros(missing, stack.rows.dtype)),
        positions=[*stack.positions, *[stack.positions[-1]] * missing],
    )


def _partial_batch(stack: Stack, index: int) -> Stack:
    """Returns one batch of the stack without its padding, as a stack of its own."""
    rows = int(stack.rows[index])
    features, labels = jax.tree.map(
        lambda leaf: leaf[index : index + 1, :rows], (stack.features, stack.labels)
    )
    return Stack(
        features=features,
        labels=labels,
        rows=stack.rows[index : index + 1],
        positions=stack.positions[index : index + 1],
    )
