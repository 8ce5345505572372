"""Sees to it that one process at a time writes into a model_dir."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from estimator.checkpoints.layout import as_path, is_local

logger = logging.getLogger(__name__)


class WriterConflictError(RuntimeError):
    """Another process trains into the same model_dir."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds the lock of a model_dir.

    Attributes:
      host: its name.
      pid: of the process there.
      started: when that process started, in ticks since the host did: a number of processes
        come to have the same pid, above all in containers. Empty where it cannot be known.
      nonce: tells two holders apart whatever else they share.
    """

    host: str
    pid: int
    started: str
    nonce: str

    @staticmethod
    def this_process() -> Holder:
        pid = os.getpid()
        return Holder(
            host=socket.gethostname(), pid=pid, started=_started(pid), nonce=uuid.uuid4().hex
        )

    def is_dead(self) -> bool:
        """Says whether the process is known to be gone; of other hosts nothing is known."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it lives, and is another user's
        return self.started != _started(self.pid)


@contextlib.contextmanager
def sole_writer(model_dir: str | os.PathLike[str]) -> Iterator[None]:
    """Makes the caller the only one that writes into `model_dir` while it is entered.

    The lock is the file `<model_dir>/writer.lock`. That of a process of this host that has died
    is taken over. (Object stores have no exclusive creation: two writers that start there at the
    same moment may both get in.)

    Raises:
      ValueError: `model_dir` cannot be made or written.
      WriterConflictError: another process writes there; says which.
    """
    model_dir = as_path(model_dir)
    lock, mine = model_dir / "writer.lock", Holder.this_process()
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        while not _create(lock, mine):
            _make_way(lock)
    except OSError as error:
        raise ValueError(
            f"model_dir={str(model_dir)!r} cannot be written: {type(error).__name__}: {error}. "
            "Pass a folder that this process may make and write."
        ) from error
    try:
        yield
    finally:
        if _read(lock) == mine:  # not where somebody has removed it, and others have come
            lock.unlink(missing_ok=True)


def _make_way(lock: epath.Path) -> None:
    """Removes the lock if its holder is dead; returns too if it has just been given back."""
    holder = _read(lock)
    if holder is None:
        return
    if not holder.is_dead():
        raise WriterConflictError(
            f"Process {holder.pid} on {holder.host} trains into {lock.parent} already, and two "
            "would destroy each other's checkpoints. Wait for it, or use another model_dir. If "
            f"that process is gone, delete {lock}."
        )
    aside = lock.parent / f"{lock.name}.{uuid.uuid4().hex}"
    try:
        lock.rename(aside)
    except FileNotFoundError:
        return  # another process was quicker
    if _read(aside) != holder:
        aside.rename(lock)  # quicker still: this one is not the dead one's
        return
    aside.unlink()
    logger.warning("Process %d, which trained into %s, is dead.", holder.pid, lock.parent)


def _create(lock: epath.Path, holder: Holder) -> bool:
    """Makes the lock, with its content, if there is none; says whether it did."""
    text = json.dumps(dataclasses.asdict(holder))
    if is_local(lock):
        # A link appears with its content or, if there is a lock, not at all.
        draft = lock.parent / f"{lock.name}.{holder.nonce}"
        draft.write_text(text)
        try:
            os.link(draft, lock)
            return True
        except FileExistsError:
            return False
        except OSError:
            pass  # a file system without links: as on object stores
        finally:
            draft.unlink()
    if lock.exists():
        return False
    lock.write_text(text)
    return True


def _read(lock: epath.Path) -> Holder | None:
    try:
        text = lock.read_text()
    except FileNotFoundError:
        return None
    try:
        return Holder(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise WriterConflictError(
            f"{lock} does not say which process trains there. Delete it if none does."
        ) from error


def _started(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""  # gone, or a system that has no such files
    fields = status.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]  # a zombie is dead, though it has a pid
