"""Where the examples of a dataset come from, one at a time."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from input_pipeline.columns import Columns
from input_pipeline.layout import joined
from input_pipeline.order import Order, Shard, Shuffle
from input_pipeline.reader import OwnedIterator, called
from input_pipeline.skipping import SkipReport
from input_pipeline.source import PositionError


class Item(NamedTuple):
    """What travels down a pipeline.

    Attributes:
      value: an example, a batch, or END_OF_EPOCH.
      epoch: of the last example in it.
      examples: examples of that epoch that came up to it.
      number: which example of the data this is, or the first in it; the same in each epoch.
    """

    value: Any
    epoch: int
    examples: int
    number: int


END_OF_EPOCH = object()
"""The value of an item behind the last example of each epoch."""


class Root(abc.ABC):
    """Gives examples in an order."""

    num_examples: int | None

    @abc.abstractmethod
    def items(self, order: Order, epoch: int, examples: int) -> Iterator[Item]:
        """Yields items, and END_OF_EPOCH, from where `examples` of `epoch` have been read.

        The values are what `example` makes examples of: that may take long, or be done on
        several threads.
        """

    @abc.abstractmethod
    def example(self, value: Any) -> Any:
        """Returns the example for a value."""


class RandomAccess(Protocol):
    """Examples by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


class IndexedRoot(Root):
    """Examples that are read by their number."""

    num_examples: int

    def items(self, order: Order, epoch: int, examples: int) -> Iterator[Item]:
        length = order.epoch_length
        while length > 0 and (order.epochs is None or epoch < order.epochs):
            indices = order.epoch_indices(epoch)
            for place in range(examples, length):
                if order.limit is not None and epoch * length + place >= order.limit:
                    return
                number = int(indices[place])
                yield Item(number, epoch, place + 1, number)
            yield Item(END_OF_EPOCH, epoch, length, 0)
            epoch, examples = epoch + 1, 0


class TableRoot(IndexedRoot):
    """Examples of which many can be read at once."""

    @abc.abstractmethod
    def rows(self, wanted: np.ndarray | slice) -> Any:
        """Returns a batch of examples, which the caller may change."""


class ColumnsRoot(TableRoot):
    """The rows of arrays."""

    def __init__(self, columns: Columns):
        self.columns = columns
        self.num_examples = len(columns)

    def example(self, value: int) -> Any:
        # Copies, since a function that changes its argument must not change the data.
        rows = [array[value] for array in self.columns.arrays]
        rows = [row.copy() if isinstance(row, np.ndarray) else row for row in rows]
        return joined(self.columns.layout.unflatten(rows))

    def rows(self, wanted: np.ndarray | slice) -> Any:
        rows = [np.array(array[wanted]) for array in self.columns.arrays]
        return joined(self.columns.layout.unflatten(rows))


class ResidentRoot(ColumnsRoot):
    """The rows of arrays that wait on the devices, where no function of the host sees them."""


class LookupRoot(IndexedRoot):
    """The entries of anything with a length and numbered entries."""

    def __init__(self, source: RandomAccess):
        self._source = source
        self.num_examples = len(source)

    def example(self, value: int) -> Any:
        return called(self._source.__getitem__, value)


class GeneratedRoot(Root):
    """What a function generates, anew in each epoch."""

    num_examples = None

    def __init__(self, generate: Callable[[], Iterable[Any]]):
        self._generate = generate

    def items(self, order: Order, epoch: int, examples: int) -> Iterator[Item]:
        while order.epochs is None or epoch < order.epochs:
            generated = OwnedIterator(lambda: iter(self._generate()))
            try:
                numbered = _in_order(enumerate(_all_of(generated)), order)
                report = SkipReport(examples, "examples")
                place = 0
                for number, value in numbered:
                    place += 1
                    if place > examples:
                        yield Item(value, epoch, place, number)
                    else:
                        report.skipped(place)
            finally:
                generated.close()
            if place + 1 < examples:  # the position may be that of a shard with one more
                raise PositionError(
                    f"The saved position of the input is behind {examples} examples of an epoch, "
                    f"this one has {place}. Feed the input that was saved, or start it afresh."
                )
            yield Item(END_OF_EPOCH, epoch, place, 0)
            if place == 0:
                return  # or an endless repeat would never end
            epoch, examples = epoch + 1, 0

    def example(self, value: Any) -> Any:
        return value


def _all_of(iterator: OwnedIterator) -> Iterator[Any]:
    while (element := iterator.next()) is not None:
        yield element[0]


def _in_order(numbered: Iterator[Any], order: Order) -> Iterator[Any]:
    for step in order.steps:
        assert not isinstance(step, Shuffle)
        if isinstance(step, Shard):
            numbered = itertools.islice(numbered, step.index, None, step.count)
        else:
            numbered = itertools.islice(numbered, step.count)
    return numbered
