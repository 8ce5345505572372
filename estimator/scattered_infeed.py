"""An infeed of batches that process 0 reads for the whole job, and sends to each its rows."""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from estimator.batches import Batches
from estimator.hosts import Hosts
from estimator.infeed import Infeed, Piece
from estimator.input_partition import InputPartition


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Parcel:
    """What process 0 sends to another of one transfer.

    Attributes:
      batches: its rows of each batch: numpy arrays `[capacity, rows, ...]`.
      start: where the first batch to run stands.
      rows: `[steps]` real examples of each batch among them.
      all_rows: `[steps]` real examples of each batch on all processes.
      host_columns: of the real ones, for each batch.
    """

    batches: Batches
    start: int
    rows: np.ndarray
    all_rows: np.ndarray
    host_columns: Sequence[Mapping[str, np.ndarray]]


class ScatteredInfeed:
    """Gives pieces of the batches that process 0 reads.

    Args:
      infeed: on process 0, whose batches stay on the host; None on the others.
      hosts: the processes.
      partition: puts the rows of a process on the devices.
      rows: which rows of a batch each process holds, ascending.
    """

    def __init__(
        self,
        infeed: Infeed | None,
        hosts: Hosts,
        partition: InputPartition,
        rows: Sequence[np.ndarray],
    ):
        self._infeed = infeed
        self._hosts = hosts
        self._partition = partition
        self._rows = rows
        self._current: _Parcel | None = None
        self._offset = 0
        self._wait_secs = 0.0
        self._lap_start = time.monotonic()

    @property
    def ready(self) -> bool:
        """True: whether to wait must not depend on what has come to this process alone."""
        return True

    def lap(self) -> tuple[float, float]:
        """See `Infeed.lap`."""
        now, start, waited = time.monotonic(), self._lap_start, self._wait_secs
        self._lap_start, self._wait_secs = now, 0.0
        return now - start, waited

    def abandon(self) -> None:
        """Ends the wait of `take`; see `Infeed.abandon`."""
        if self._infeed is not None:
            self._infeed.abandon()

    def take(self, at_most: int) -> Piece | None:
        """Returns the next piece, of the same steps on every process, or None at the end.

        Raises:
          HostError: another process failed, or does something else.
          Also the error of the input, as itself on process 0.
        """
        if self._current is None or self._offset == len(self._current.rows):
            started = time.monotonic()
            self._current, self._offset = self._next_parcel(), 0
            self._wait_secs += time.monotonic() - started
        parcel = self._current
        if parcel is None:
            return None
        begin, end = self._offset, min(self._offset + at_most, len(parcel.rows))
        self._offset = end
        position = None
        if self._infeed is not None:
            taken = self._infeed.take(end - begin)
            position = None if taken is None else taken.position
        return Piece(
            batches=parcel.batches,
            start=parcel.start + begin,
            stop=parcel.start + end,
            rows=parcel.rows[begin:end],
            examples=int(parcel.all_rows[begin:end].sum()),
            position=position,
            steps_left=None,
            host_columns=parcel.host_columns[begin:end],
        )

    def _next_parcel(self) -> _Parcel | None:
        parcels = None
        if self._infeed is not None:
            whole = self._infeed.offer()
            parcels = [b"" if whole is None else _cut(whole, rows) for rows in self._rows]
        data = self._hosts.scatter("input", parcels)
        if not data:
            return None
        parcel: _Parcel = pickle.loads(data)
        return dataclasses.replace(parcel, batches=self._partition.put(parcel.batches))


def _cut(piece: Piece, rows: np.ndarray) -> bytes:
    """Returns the parcel with the given rows of each batch of the piece."""
    real = rows < piece.rows[:, None]
    return pickle.dumps(
        _Parcel(
            batches=jax.tree.map(lambda leaf: leaf[:, rows], piece.batches),
            start=piece.start,
            rows=real.sum(axis=1),
            all_rows=piece.rows,
            host_columns=[
                {name: column[rows[mine]] for name, column in columns.items()}
                for columns, mine in zip(piece.host_columns, real, strict=True)
            ]
            if piece.host_columns
            else (),
        ),
        protocol=5,
    )
