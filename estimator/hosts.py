"""The processes of a job: how they agree before each thing that all must do together."""

from __future__ import annotations

import contextlib
import functools
import logging
import pickle
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")

_VALUES = 5
_TEXT_BYTES = 4096
_LENGTH_BYTES = 8
_REPORT_SECS = 30.0
# In what the libraries under the collectives say of a peer that is gone; they have no error type.
_SIGNS_OF_LOSS = ("gloo", "nccl", "connection reset", "connection closed", "socket closed")


class HostError(RuntimeError):
    """Another process of the job failed, or does something else than this one."""


class HostLostError(HostError):
    """Another process of the job has died or cannot be reached."""


class Hosts:
    """The processes of the job. With one process everything here is free and agrees at once.

    A program with collectives runs on all processes or hangs on those that start it. So they
    meet before each: at a meeting every process says where it is and what it has, and all get
    the same answer. A process that fails comes to the next meeting to say so, whatever the
    others called it for; so an error on one ends all, by its own words.

    Meetings are collectives of the devices themselves: call them from the main thread only, in
    the same order on every process.

    Args:
      devices: that the job runs on: those of all processes, or of this one alone, which then is
        a job by itself.

    Attributes:
      count: processes of the job.
      index: of this one.
      meeting: whether this process waits for the others to come to a meeting.

    Raises:
      ValueError: the devices are those of some of the processes.
    """

    def __init__(self, devices: Iterable[Any]) -> None:
        self._chief_alone = False
        self.meeting = False
        processes = {device.process_index for device in devices}
        if processes == {jax.process_index()}:
            self.count, self.index = 1, 0
        elif len(processes) == jax.process_count():
            self.count, self.index = jax.process_count(), jax.process_index()
        else:
            raise ValueError(
                f"The devices belong to the processes {sorted(processes)} of the "
                f"{jax.process_count()} that there are. Use devices of all of them, or only "
                "jax.local_devices()."
            )

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what is written once."""
        return self.index == 0

    def agree(self, what: str, *values: int) -> np.ndarray:
        """Returns the values of all processes, `[processes, len(values)]` int64.

        Args:
          what: happens next; all processes must name the same.
          values: at most five of this process, each in 32 bits.

        Raises:
          HostError: another process failed, or is about to do something else.
        """
        if self.count == 1:
            return np.array([values], np.int64)
        if self._chief_alone:
            raise HostError(
                f"Process 0 comes to {what!r} in what it does alone, while the others wait for it "
                "to end. That needs all processes: do it outside."
            )
        rows = self._meet(what, values, failed=False)
        if rows[:, 0].any():
            texts = self._exchange_text("")
            raise HostError(
                "; ".join(
                    f"process {index} of {self.count} failed: {texts[index]}"
                    for index in np.flatnonzero(rows[:, 0])
                )
            )
        if len(set(rows[:, 1].tolist())) > 1:
            texts = self._exchange_text(what)
            places = "; ".join(f"process {i} is at {text!r}" for i, text in enumerate(texts))
            raise HostError(
                f"The processes of the job do different things: {places}. What saves, evaluates "
                "or computes on all devices must be called on every process, in the same order."
            )
        return rows[:, 2 : 2 + len(values)].astype(np.int64)

    def any(self, what: str, vote: bool) -> bool:
        """Returns whether any process votes for it; see `agree`."""
        return bool(self.agree(what, int(vote)).any())

    def gather(self, what: str, value: Any) -> list[Any]:
        """Returns the value of each process, in their order; see `agree`.

        Args:
          what: as in `agree`.
          value: anything that can be pickled.
        """
        if self.count == 1:
            return [value]
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = self.agree(what, len(data))[:, 0]
        # Rounded up, so that few programs are compiled.
        padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)
        padded[: len(data)] = data
        gathered = _exchange(padded)
        return [
            pickle.loads(row[:size].tobytes()) for row, size in zip(gathered, sizes, strict=True)
        ]

    def scatter(self, what: str, parcels: Sequence[bytes] | None) -> bytes:
        """Returns the parcel that process 0 has for this one; see `agree`.

        Args:
          what: as in `agree`.
          parcels: one for each process, on process 0; None on the others.
        """
        longest = 0 if parcels is None else max(map(len, parcels))
        size = int(self.agree(what, longest)[0, 0])
        if size == 0:
            return b""
        # A length in front, and rounded up, so that few programs are compiled.
        padded = 1 << (size + _LENGTH_BYTES - 1).bit_length()
        rows = np.zeros((self.count, padded), np.uint8)
        for row, parcel in zip(rows, parcels or (), strict=False):
            data = len(parcel).to_bytes(_LENGTH_BYTES, "little") + parcel
            row[: len(data)] = np.frombuffer(data, np.uint8)
        own = _scatter(rows).tobytes()
        length = int.from_bytes(own[:_LENGTH_BYTES], "little")
        return own[_LENGTH_BYTES : _LENGTH_BYTES + length]

    def on_chief(self, what: str, do: Callable[[], T]) -> T:
        """Returns what `do` returns on process 0, which calls it alone, on all processes.

        `do` starts nothing that needs them all; what it raises, the others hear of as a
        HostError.

        Args:
          what: as in `agree`.
          do: its result can be pickled.
        """
        if self.count == 1 or self._chief_alone:
            return do()
        with self.together():
            result = None
            if self.is_chief:
                self._chief_alone = True
                try:
                    result = do()
                finally:
                    self._chief_alone = False
            return self.gather(what, result)[0]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around what all processes do: an error that leaves it is told to the others.

        They raise a HostError with its words at their next meeting. The wait for them ends
        after 30 seconds; then the end of this process is what they hear of. Where a program on
        the devices ends since another process is gone, the error says that.
        """
        try:
            with self.losses_named():
                yield
        except (HostError, KeyboardInterrupt, GeneratorExit):
            raise  # known to all, or meant for this process alone
        except BaseException as error:
            if self.count == 1 or self._chief_alone:
                raise
            self._report(error)
            raise

    @contextlib.contextmanager
    def losses_named(self) -> Iterator[None]:
        """Around programs on the devices of all processes: turns what they raise where another
        process is gone into a HostLostError that names it."""
        try:
            yield
        except Exception as error:
            if self.count == 1 or not _is_loss(error):
                raise
            raise _loss(error) from error

    def _report(self, error: BaseException) -> None:
        def tell() -> None:
            try:
                self._meet("", (), failed=True)
                self._exchange_text(f"{type(error).__name__}: {error}")
            except HostError as failed:
                logger.warning("The other processes could not be told: %s", failed)

        # A collective cannot be given up; its thread can.
        thread = threading.Thread(target=tell, name="tell other processes", daemon=True)
        thread.start()
        thread.join(_REPORT_SECS)
        if thread.is_alive():
            logger.warning(
                "The other processes did not come to hear of the error within %g s.", _REPORT_SECS
            )

    def _meet(self, what: str, values: tuple[int, ...], *, failed: bool) -> np.ndarray:
        row = np.zeros(2 + _VALUES, np.int32)
        row[:2] = failed, zlib.crc32(what.encode()) >> 1
        row[2 : 2 + len(values)] = values
        self.meeting = True
        try:
            return _exchange(row)
        finally:
            self.meeting = False

    def _exchange_text(self, text: str) -> list[str]:
        row = np.zeros(_TEXT_BYTES, np.uint8)
        data = np.frombuffer(text.encode()[:_TEXT_BYTES], np.uint8)
        row[: len(data)] = data
        rows = _exchange(row)
        return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]


def _exchange(row: np.ndarray) -> np.ndarray:
    """Returns the rows of all processes, which have one shape."""
    from jax.experimental import multihost_utils

    with _exchanging():
        return np.asarray(multihost_utils.process_allgather(row))


def _scatter(rows: np.ndarray) -> np.ndarray:
    """Returns this process's row of what all processes have for it together: `rows`
    `[processes, bytes]` of process 0, and zeros of the others."""
    devices = np.array(jax.devices()).reshape(jax.process_count(), jax.local_device_count())
    by_process = NamedSharding(Mesh(devices, ("processes", "local")), PartitionSpec("processes"))
    with _exchanging():
        sent = jax.make_array_from_process_local_data(by_process, rows[None])
        return np.asarray(_summed(by_process)(sent).addressable_data(0))[0]


@functools.cache
def _summed(sharding: NamedSharding) -> Any:
    # Bytes, so that adding zeros changes nothing, whatever they stand for.
    return jax.jit(lambda rows: rows.sum(0, dtype=np.uint8), out_shardings=sharding)


@contextlib.contextmanager
def _exchanging() -> Iterator[None]:
    """Around the exchanges of a meeting, which fail only where a process is lost."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise _loss(error) from error


def _loss(error: BaseException) -> HostLostError:
    count, index = jax.process_count(), jax.process_index()
    others = [str(other) for other in range(count) if other != index]
    who = f"process {others[0]}" if count == 2 else f"one of the processes {', '.join(others)}"
    return HostLostError(
        f"Process {index} of {count} has lost the connection to {who}, which has died or cannot be "
        f"reached ({str(error).splitlines()[0]}). The job goes on from its last checkpoint when it "
        "is started again."
    )


def _is_loss(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, jax.errors.JaxRuntimeError | ValueError) and any(
        sign in text for sign in _SIGNS_OF_LOSS
    )
