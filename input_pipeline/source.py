"""What every input becomes: a source of stacked batches that knows where it stands."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline.columns import Columns

Position = Mapping[str, Any]
"""Where a source stands: a JSON object, opaque to all but the source that made it."""


class PositionError(ValueError):
    """The position belongs to another input than this source reads."""


class RegroupedInputError(PositionError):
    """The position is that of this input in batches of another size, or in another number of
    pipelines, and cannot be translated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputContext:
    """Which part of the job one call of input_fn feeds; `params["context"]` in input_fn.

    Attributes:
      num_input_pipelines: calls of input_fn over the whole job.
      input_pipeline_id: which of them this is, from 0.
      num_hosts: processes in the job.
      current_host: index of this process.
      num_replicas: replicas over the whole job.
      batch_size: examples that each batch of this call should have.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_hosts: int = 1
    current_host: int = 0
    num_replicas: int = 1
    batch_size: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
    """Batches stacked for one loop on the device.

    Attributes:
      features: pytree of arrays `[capacity, batch, ...]`; batches from `len(rows)` on are
        unset memory.
      labels: likewise, or None.
      rows: `[steps]` int32, the real examples of each batch. In a batch with fewer than
        `batch` the rest repeats its real rows in a cycle, so that padding never brings in a
        value (a NaN, an id out of range) that the data does not have.
      positions: where the source stands after each batch.
      host_columns: for each batch, the columns of features that hold no numbers and so stay on
        the host, `[rows, ...]` by name. Empty unless they were asked for.
    """

    features: Any
    labels: Any
    rows: np.ndarray
    positions: Sequence[Position]
    host_columns: Sequence[Mapping[str, np.ndarray]] = ()

    @property
    def steps(self) -> int:
        """Batches that are set."""
        return len(self.rows)


class Source(abc.ABC):
    """Reads batches of `batch_size` examples in order, many at a time.

    One thread uses a source at a time. `close` may come from another one.

    Attributes:
      batch_size: examples in a full batch.
      seeks_by_reading: whether `seek` reads and drops what comes before, and so counts on the
        data to come in the same order again.
      shapes_vary: whether trailing shapes may differ between stacks, on purpose.
      common_position: whether the position is that of all shards of the data that are read in
        step, so that any number of shards can go on from it.
      table: arrays that should be put on the devices once. Stacks then have the numbers of its
        rows as features, `[capacity, batch]` int32, and no labels. None where stacks hold the
        data itself.
    """

    batch_size: int
    seeks_by_reading: bool = False
    shapes_vary: bool = False
    common_position: bool = False
    table: Columns | None = None

    @property
    def host_column_names(self) -> tuple[str, ...]:
        """Names of what `Stack.host_columns` will hold, once `element_spec` has been called."""
        return ()

    @abc.abstractmethod
    def element_spec(self) -> tuple[Any, Any]:
        """Returns (features, labels) of one batch with a `jax.ShapeDtypeStruct` `[batch_size, ...]`
        in each array's place; (None, None) if there is no batch at all.

        May read the first batch (which `read` then still returns).
        """

    @abc.abstractmethod
    def num_batches(self) -> int | None:
        """Returns how many batches are left, or None if that is unknown or endless."""

    @abc.abstractmethod
    def at_end(self) -> bool:
        """Says whether `read` would return None. May read the next batch (which `read` then
        still returns)."""

    @abc.abstractmethod
    def read(
        self, count: int, *, capacity: int | None = None, fill_secs: float | None = None
    ) -> Stack | None:
        """Reads up to `count` batches.

        Args:
          count: batches wanted, at least 1. Never more are taken from the underlying data.
          capacity: leading dimension of the arrays returned, and the most batches they can
            hold; `count` if not given.
          fill_secs: return early, with at least one batch, once this much time has passed. That
            is looked at between batches: one that is waited for holds back those before it.

        Returns:
          A stack with at least one batch, or None at the end of the data.

        Raises:
          ValueError: a batch differs from the first in structure, dtype or trailing shape,
            has more than `batch_size` examples, or holds something that is no number.
          Whatever the user's data or functions raise, as itself; if batches came before it in
          the stack, they are returned, and the next `read` raises it.
        """

    @abc.abstractmethod
    def position(self) -> Position:
        """Returns where the source stands: after the last batch that `read` returned."""

    @abc.abstractmethod
    def seek(self, position: Position) -> None:
        """Continues at `position`, before or after the first `read`.

        Raises:
          PositionError: `position` was made by a different kind or size of input; a
        RegroupedInputError if by this one, grouped in another way.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Releases threads, files and generators; wakes a `read` that waits on a queue."""
