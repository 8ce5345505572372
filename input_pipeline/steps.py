"""What a dataset does to its elements, one at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from input_pipeline.reader import called
from input_pipeline.roots import END_OF_EPOCH, Item

_DROPPED = object()


@dataclasses.dataclass(frozen=True)
class Map:
    """Replaces an element by what a function makes of it.

    Attributes:
      function: called with the element, and with a random generator if there is a seed.
      seed: decides, with the epoch and the number of the element, what the generator yields.
    """

    function: Callable[..., Any]
    seed: int | None = None

    def apply(self, item: Item) -> Any:
        if self.seed is None:
            return called(self.function, item.value)
        rng = np.random.default_rng([self.seed, item.epoch, item.number])
        return called(self.function, item.value, rng)


@dataclasses.dataclass(frozen=True)
class Filter:
    """Keeps the elements for which a function returns true."""

    function: Callable[[Any], Any]

    def apply(self, item: Item) -> Any:
        return item.value if called(self.function, item.value) else _DROPPED


def applied(steps: Sequence[Map | Filter], item: Item) -> Item | None:
    """Returns the item after all steps, or None if one dropped it."""
    if item.value is END_OF_EPOCH:
        return item
    for step in steps:
        item = item._replace(value=step.apply(item))
        if item.value is _DROPPED:
            return None
    return item


def kept(items: Iterable[Item | None], noun: str, *, endless: bool) -> Iterator[Item]:
    """Yields the items that were not dropped.

    Args:
      items: None stands for one that was dropped.
      noun: what the items are, for the error.
      endless: whether there is no last epoch.

    Raises:
      ValueError: a whole epoch was dropped, and without a last one that would go on for ever.
    """
    read = passed = 0
    # The first epoch counts only if it is read from its start, which is not known here.
    whole = False
    for item in items:
        if item is not None and item.value is END_OF_EPOCH:
            if endless and whole and read and not passed:
                raise ValueError(
                    f"filter kept none of the {read} {noun} of epoch {item.epoch}, and repeat() "
                    "without a count would go on for ever."
                )
            yield item
            read = passed = 0
            whole = True
            continue
        read += 1
        if item is not None:
            passed += 1
            yield item
