"""Sees to it that one process at a time writes into a model_dir."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

from etils import epath

from estimator.checkpoints.holder import Holder
from estimator.checkpoints.layout import as_path, is_local
from hooks import Hook, LoopView

logger = logging.getLogger(__name__)

_RENEW_SECS = 5.0
_LEASE_SECS = 25.0  # less than what the other processes of a job wait for this one
_POLL_SECS = 1.0


class WriterConflictError(RuntimeError):
    """Another process trains into the same model_dir."""


class LockHook(Hook):
    """Refuses to save where another process has taken over the lock.

    Args:
      lock: the file.
      holder: this process.
    """

    def __init__(self, lock: epath.Path, holder: Holder):
        self.holder = holder
        self._lock = lock

    def before_save(self, view: LoopView) -> None:
        holder = _read(self._lock)
        if holder == self.holder:
            return
        who = "nobody" if holder is None else f"process {holder.pid} on {holder.host}"
        raise WriterConflictError(
            f"The lock {self._lock} of this process is gone: {who} has it now, as if this process "
            f"were dead. So step {view.step} was not saved, and the checkpoints of the other stay "
            "whole. See which of the two is to go on."
        )


@contextlib.contextmanager
def sole_writer(
    model_dir: str | os.PathLike[str], sleep: Callable[[float], None] = time.sleep
) -> Iterator[LockHook]:
    """Makes the caller the only one that writes into `model_dir` while it is entered.

    The lock is the file `<model_dir>/writer.lock`, whose time its holder renews every five
    seconds. That of a process of this machine that has died is taken over at once. What lives on
    others cannot be asked: a lock of theirs is taken over if for 25 seconds nobody renews it, so
    that a job that was killed on one machine goes on by itself on another. (Object stores have no
    exclusive creation: two writers that start there at the same moment may both get in; the first
    save of one of them ends it.)

    Args:
      model_dir: of the run.
      sleep: waits for seconds; tests pass their own.

    Yields:
      A hook for the run that holds the lock.

    Raises:
      ValueError: `model_dir` cannot be made or written.
      WriterConflictError: another process writes there; says which.
    """
    model_dir = as_path(model_dir)
    lock, mine = model_dir / "writer.lock", Holder.this_process()
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        while not _create(lock, mine):
            _make_way(lock, sleep)
        _clear_drafts(lock)
    except OSError as error:
        raise ValueError(
            f"model_dir={str(model_dir)!r} cannot be written: {type(error).__name__}: {error}. "
            "Pass a folder that this process may make and write."
        ) from error
    done = threading.Event()
    renewing = threading.Thread(
        target=keep_renewed, args=(lock, mine, done), name="renew writer.lock", daemon=True
    )
    renewing.start()
    try:
        yield LockHook(lock, mine)
    finally:
        done.set()
        renewing.join()
        _remove(lock, mine)  # not where somebody has removed it, and others have come


def keep_renewed(lock: epath.Path, mine: Holder, done: threading.Event) -> None:
    """Renews the time of the lock every few seconds until `done` is set or the lock is lost."""
    while not done.wait(_RENEW_SECS):
        try:
            if _read(lock) != mine:
                return  # the next save says so
            if is_local(lock):
                os.utime(lock)
            else:
                lock.write_text(_text(mine))
        except (OSError, WriterConflictError) as error:
            logger.warning("%s could not be renewed: %s", lock, error)


def _make_way(lock: epath.Path, sleep: Callable[[float], None]) -> None:
    """Removes the lock if its holder is dead; returns too if it has just been given back."""
    holder = _read(lock)
    if holder is None:
        return
    if not (holder.is_dead() if holder.is_near else _is_left(lock, holder, sleep)):
        raise WriterConflictError(
            f"Process {holder.pid} on {holder.host} trains into {lock.parent} already, and two "
            "would destroy each other's checkpoints. Wait for it, or use another model_dir. If "
            f"that process is gone, delete {lock}."
        )
    if _remove(lock, holder):  # and neither has it been given back nor was another quicker
        logger.warning(
            "Process %d on %s, which trained into %s, is dead.",
            holder.pid,
            holder.host,
            lock.parent,
        )


def _is_left(lock: epath.Path, holder: Holder, sleep: Callable[[float], None]) -> bool:
    """Says whether the holder no longer renews the lock, or has given it back."""
    logger.info(
        "Process %d on %s has %s: waiting for up to %g s to see whether it lives.",
        holder.pid,
        holder.host,
        lock,
        _LEASE_SECS,
    )
    try:
        first = lock.stat().mtime
        for _ in range(int(_LEASE_SECS / _POLL_SECS)):
            sleep(_POLL_SECS)
            # It is read, and not only asked for its time, as network file systems keep that.
            if _read(lock) != holder:
                return True
            if lock.stat().mtime != first:
                return False
    except FileNotFoundError:
        pass
    return True


def _create(lock: epath.Path, holder: Holder) -> bool:
    """Makes the lock, with its content, if there is none; says whether it did."""
    if is_local(lock):
        # A link appears with its content or, if there is a lock, not at all.
        draft = lock.parent / f"{lock.name}.{holder.nonce}"
        draft.write_text(_text(holder))
        try:
            os.link(draft, lock)
            return True
        except FileExistsError:
            return False
        except OSError:
            pass  # a file system without links: as on object stores
        finally:
            draft.unlink(missing_ok=True)
    if lock.exists():
        return False
    lock.write_text(_text(holder))
    return True


def _remove(lock: epath.Path, holder: Holder) -> bool:
    """Removes the lock if it is that of `holder`, and never another's; says whether it did."""
    if not is_local(lock):
        if _read(lock) != holder:
            return False
        lock.unlink(missing_ok=True)
        return True
    try:
        with open(lock, "r+", encoding="utf-8") as file:
            # Who removes the file has it open and locked: of all who find its holder dead, the
            # second sees, when its turn comes, that the file is no longer the one of that name.
            with contextlib.suppress(OSError):  # a file system without such locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                return False
            if _read(lock) != holder:
                return False
            os.unlink(lock)
            return True
    except FileNotFoundError:
        return False


def _clear_drafts(lock: epath.Path) -> None:
    """Removes what processes of this machine left that were killed on their way to the lock."""
    for draft in lock.parent.glob(f"{lock.name}.*"):
        try:
            holder = _read(draft)
        except WriterConflictError:
            continue  # being written
        if holder is not None and holder.is_near and holder.is_dead():
            draft.unlink(missing_ok=True)


def _text(holder: Holder) -> str:
    return json.dumps(dataclasses.asdict(holder))


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
