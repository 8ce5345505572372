"""Runs a dataset: examples in order, through functions, into batches, through functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from input_pipeline.ahead import Ahead
from input_pipeline.assembly import Assembly
from input_pipeline.cuts import Cuts
from input_pipeline.order import Order, OrderReader
from input_pipeline.reader import BatchReader, OwnedIterator
from input_pipeline.roots import END_OF_EPOCH, Item, Root, TableRoot
from input_pipeline.source import Position
from input_pipeline.steps import Filter, Map, applied, kept


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """All that a dataset does.

    Attributes:
      root: where examples come from.
      order: in which order.
      example_steps: what becomes of each.
      assembly: how they become batches; None if that is left to the reader.
      batch_steps: what becomes of each batch.
      batch_limit: batches at most, or None.
      threads: that read and map examples, ahead of their use; 0 for none.
      ahead: examples that are worked on ahead of their use.
    """

    root: Root
    order: Order
    example_steps: tuple[Map | Filter, ...] = ()
    assembly: Assembly | None = None
    batch_steps: tuple[Map | Filter, ...] = ()
    batch_limit: int | None = None
    threads: int = 0
    ahead: int = 0

    @property
    def gathers(self) -> bool:
        """Whether batches are read as a whole, with no work on single examples."""
        return (
            isinstance(self.root, TableRoot)
            and not self.example_steps
            and (self.assembly is None or self.assembly.pad_to is None)
        )

    def cuts(self, assembly: Assembly) -> Cuts:
        """Returns where batches end in an order of known length."""
        epochs = assembly.epochs
        segment = None if epochs is None else epochs * self.order.epoch_length
        return Cuts(assembly.size, assembly.drop_remainder, segment)


class PlanReader(BatchReader):
    """Reads the batches of a plan.

    The work is a chain of generators over items that carry their place in the data with them:
    whatever runs ahead of its use, the place of a batch is its own.

    Args:
      plan: what to do.
      assembly: how examples become batches.
    """

    def __init__(self, plan: Plan, assembly: Assembly):
        self.seeks_by_reading = plan.root.num_examples is None
        self.shapes_vary = assembly.pad_to is not None
        self.common_position = plan.order.ends_in_shards and plan.batch_limit is None
        self._plan = plan
        self._assembly = assembly
        self._epoch = 0
        self._examples = 0
        self._batches = 0
        self._ahead: Ahead | None = None
        if plan.threads:
            self._ahead = Ahead(threads=plan.threads, size=plan.ahead)
        self._items = OwnedIterator(lambda: self._open(self._epoch, self._examples))

    def next(self) -> tuple[Any] | None:
        if self._batches == self._plan.batch_limit:
            return None
        while (boxed := self._items.next()) is not None:
            item: Item = boxed[0]
            if item.value is not END_OF_EPOCH:
                self._epoch, self._examples = item.epoch, item.examples
                self._batches += 1
                return (item.value,)
        return None

    def position(self) -> Position:
        position = self._plan.order.position(self._epoch, self._examples)
        if self._plan.batch_limit is not None:
            position = {**position, "batches": self._batches}
        return position

    def seek(self, position: Position) -> None:
        self._epoch, self._examples = self._plan.order.cursor(position)
        self._batches = position.get("batches", 0)
        self._items.restart()

    def num_batches(self) -> int | None:
        filters = [*self._plan.example_steps, *self._plan.batch_steps]
        if self._plan.root.num_examples is None or any(isinstance(f, Filter) for f in filters):
            return None
        order = self._plan.order
        start = self._epoch * order.epoch_length + self._examples
        left = self._plan.cuts(self._assembly).num_batches(start, order.length)
        if self._plan.batch_limit is None:
            return left
        allowed = self._plan.batch_limit - self._batches
        return allowed if left is None else min(left, allowed)

    def close(self) -> None:
        self._items.close()
        if self._ahead is not None:
            self._ahead.close()

    def _open(self, epoch: int, examples: int) -> Iterator[Item]:
        plan = self._plan
        endless = plan.order.epochs is None
        if plan.gathers:
            batches = self._gathered(epoch, examples)
        else:
            found = self._worked(plan.root.items(plan.order, epoch, examples))
            examples_kept = kept(found, "examples", endless=endless)
            batches = self._assembly.batches(examples_kept, endless=endless)
        stepped = (applied(plan.batch_steps, item) for item in batches)
        yield from kept(stepped, "batches", endless=endless)

    def _worked(self, items: Iterator[Item]) -> Iterable[Item | None]:
        return map(self._work, items) if self._ahead is None else self._ahead.map(self._work, items)

    def _work(self, item: Item) -> Item | None:
        if item.value is END_OF_EPOCH:
            return item
        example = self._plan.root.example(item.value)
        return applied(self._plan.example_steps, item._replace(value=example))

    def _gathered(self, epoch: int, examples: int) -> Iterator[Item]:
        """Yields batches of rows, each read as a whole, and END_OF_EPOCH."""
        plan = self._plan
        assert isinstance(plan.root, TableRoot)
        order, length = plan.order, plan.order.epoch_length
        cuts, reader = plan.cuts(self._assembly), OrderReader(order)
        start = epoch * length + examples
        while (run := next(cuts.runs(start, order.length, 1), None)) is not None:
            start, _, rows = run
            wanted = reader.read(start, rows)
            number = wanted.start if isinstance(wanted, slice) else int(wanted[0])
            batch = plan.root.rows(wanted)
            start += rows
            epoch, place = divmod(start - 1, length)
            yield Item(batch, epoch, place + 1, number)
            if (start - rows) // length < start // length:
                yield Item(END_OF_EPOCH, epoch, place + 1, number)
