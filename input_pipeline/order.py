"""Which example comes when: epochs, shuffling and sharding, by index."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from input_pipeline.source import Position, PositionError


@dataclasses.dataclass(frozen=True)
class Shuffle:
    """Another order in each epoch, which depends only on `seed` and the epoch."""

    seed: int

    def length(self, length: int) -> int:
        return length

    def apply(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        return indices[np.random.default_rng([self.seed, epoch]).permutation(len(indices))]


@dataclasses.dataclass(frozen=True)
class Shard:
    """Every `count`-th example, from `index` on."""

    count: int
    index: int

    def length(self, length: int) -> int:
        return len(range(self.index, length, self.count))

    def apply(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        return indices[self.index :: self.count]


@dataclasses.dataclass(frozen=True)
class Take:
    """The first `count` examples."""

    count: int

    def length(self, length: int) -> int:
        return min(length, self.count)

    def apply(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        return indices[: self.count]


@dataclasses.dataclass(frozen=True)
class Order:
    """An endless or finite sequence of examples, in epochs.

    Attributes:
      num_examples: of the data; None if they are generated, and not known before.
      steps: what each epoch does, one after the other, to the indices 0, 1, ...
      epochs: how many there are, or None for no end.
      limit: examples in the whole sequence at most, or None.
    """

    num_examples: int | None
    steps: tuple[Shuffle | Shard | Take, ...] = ()
    epochs: int | None = 1
    limit: int | None = None

    @property
    def epoch_length(self) -> int:
        """Examples in one epoch. Not for generated ones."""
        assert self.num_examples is not None
        length = self.num_examples
        for step in self.steps:
            length = step.length(length)
        return length

    @property
    def length(self) -> int | None:
        """Examples in the whole sequence; None if it has no end or is not known."""
        if self.num_examples is None:
            return None
        if self.epoch_length == 0:
            return 0
        if self.epochs is None:
            return self.limit
        whole = self.epoch_length * self.epochs
        return whole if self.limit is None else min(whole, self.limit)

    def epoch_indices(self, epoch: int) -> np.ndarray:
        """Returns the indices of one epoch, `[epoch_length]` int64. Not for generated examples."""
        assert self.num_examples is not None
        indices = np.arange(self.num_examples)
        for step in self.steps:
            indices = step.apply(indices, epoch)
        return indices

    def position(self, epoch: int, examples: int) -> Position:
        """Returns where the sequence stands after so many examples of an epoch."""
        return {
            "kind": "generated" if self.num_examples is None else "indexed",
            "num_examples": self.num_examples,
            "steps": self._described_steps,
            "epoch": epoch,
            # Shards that are read in step have together taken this many from the front of what
            # is sharded, so that the position is the same for all, and holds for any number.
            "examples": examples if self._last_shard is None else examples * self._last_shard.count,
        }

    def cursor(self, position: Position) -> tuple[int, int]:
        """Returns the epoch of `position` and how many examples of it come before.

        Raises:
          PositionError: it was made by another kind, size or order of data.
        """
        expected = self.position(0, 0)
        for key in ("kind", "num_examples", "steps"):
            if position.get(key) != expected[key]:
                raise PositionError(
                    f"The saved position of the input has {key}={position.get(key)!r}, this input "
                    f"has {expected[key]!r}. Feed the input that was saved, or start it afresh."
                )
        shard = self._last_shard
        examples = position["examples"]
        if shard is not None:
            examples = len(range(shard.index, examples, shard.count))
            if self.num_examples is not None:
                examples = min(examples, self.epoch_length)  # another shard may be longer
        return position["epoch"], examples

    @property
    def ends_in_shards(self) -> bool:
        """Whether the last step makes shards, whose position is that of all of them."""
        return self._last_shard is not None

    @property
    def _last_shard(self) -> Shard | None:
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, Shard) else None

    @functools.cached_property
    def _described_steps(self) -> list[str]:
        """What decides the order, as text; a shard at the end does not."""
        steps = self.steps if self._last_shard is None else self.steps[:-1]
        return [repr(step) for step in steps]


class OrderReader:
    """Reads an order anywhere; keeps the indices of the epoch that was read last."""

    def __init__(self, order: Order):
        self._order = order
        self._epoch_length = order.epoch_length
        self._epoch = -1
        self._indices = np.empty(0, np.int64)

    def read(self, start: int, count: int) -> np.ndarray | slice:
        """Returns entries `start` to `start + count` of the order: a slice where they are
        consecutive examples in the order of the data, else an array."""
        epoch, offset = divmod(start, self._epoch_length)
        if not self._order.steps and offset + count <= self._epoch_length:
            return slice(offset, offset + count)
        parts = []
        while count > 0:
            part = self._of_epoch(epoch)[offset : offset + count]
            parts.append(part)
            count -= len(part)
            epoch, offset = epoch + 1, 0
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _of_epoch(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._indices = self._order.epoch_indices(epoch)
            self._epoch = epoch
        return self._indices
