"""Makes batches of examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from input_pipeline.layout import Layout, joined, split
from input_pipeline.padding import PadTo
from input_pipeline.roots import END_OF_EPOCH, Item


@dataclasses.dataclass(frozen=True)
class Assembly:
    """How examples become batches.

    Attributes:
      size: examples in a full batch.
      drop_remainder: leave partial batches out.
      epochs: after so many epochs, again and again, a batch is cut short; None if only at the
        end of the data.
      pad_to: makes the examples of a batch equally long, or None.
    """

    size: int
    drop_remainder: bool = False
    epochs: int | None = None
    pad_to: PadTo | None = None

    def batches(self, items: Iterator[Item], *, endless: bool) -> Iterator[Item]:
        """Yields batches of the examples in `items`, and END_OF_EPOCH as it comes.

        Args:
          items: examples, and END_OF_EPOCH.
          endless: whether there is no last epoch.

        Raises:
          ValueError: an example differs from the first in structure, dtype or shape; or no epoch
            fills a batch, and without a last one that would go on for ever.
        """
        stack = _ExampleStack(self.pad_to)
        waiting: list[Item] = []
        full = 0
        # The first cut counts only if all before it is read, which is not known here.
        whole = False
        for item in items:
            if item.value is not END_OF_EPOCH:
                waiting.append(item)
                if len(waiting) == self.size:
                    yield _batch(stack, waiting, item)
                    waiting = []
                    full += 1
                continue
            if self.epochs is not None and (item.epoch + 1) % self.epochs == 0:
                if waiting and not self.drop_remainder:
                    yield _batch(stack, waiting, item)
                elif waiting and endless and whole and not full:
                    raise ValueError(
                        f"The {len(waiting)} examples between two cuts do not fill a batch of "
                        f"{self.size}, so drop_remainder leaves all of them out. Put repeat before "
                        "batch, or keep the remainder."
                    )
                waiting, full, whole = [], 0, True
            yield item
        if waiting and not self.drop_remainder:
            yield _batch(stack, waiting, waiting[-1])


def _batch(stack: _ExampleStack, items: list[Item], last: Item) -> Item:
    return Item(stack.of(items), last.epoch, last.examples, items[0].number)


class _ExampleStack:
    """Stacks the leaves of examples, which must be like the first example that it saw."""

    def __init__(self, pad_to: PadTo | None):
        self._pad_to = pad_to
        self._layout: Layout | None = None

    def of(self, items: list[Item]) -> Any:
        """Returns a batch with leaves `[len(items), ...]`."""
        pairs = [split(item.value) for item in items]
        if self._layout is None:
            self._layout = Layout.of(pairs[0], batched=False)
        layout = self._layout if self._pad_to is None else self._pad_to.layout(self._layout)
        rows = [layout.match(pair, item.number) for pair, item in zip(pairs, items, strict=True)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        if self._pad_to is not None:
            columns = self._pad_to.padded(columns, layout.names)
        return joined(layout.unflatten([np.stack(column) for column in columns]))
