"""Checkpoints on request: by a signal, or by a file."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from etils import epath

from hooks.base import EverySecs

logger = logging.getLogger(__name__)

_POLL_SECS = 5  # a look at a file of an object store takes longer than many a loop


class SaveRequest(Protocol):
    """A way to ask for a checkpoint from outside."""

    def pending(self) -> bool:
        """Says whether somebody asks for a checkpoint now."""
        ...

    def served(self) -> None:
        """Is told when the checkpoint is on disk."""
        ...


class SaveOnSignal:
    """A `SaveRequest` by SIGUSR1, for as long as it is entered.

    A handler that the user has set stays in force, and Python's comes back at the end. Signals
    are for the main thread alone: entered on another one it watches nothing.
    """

    def __init__(self) -> None:
        self._received = 0
        self._seen = 0
        self._watches = False

    def __enter__(self) -> SaveOnSignal:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGUSR1, self._on_signal)
            self._watches = True
        return self

    def __exit__(self, *error: object) -> None:
        if self._watches:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)

    def pending(self) -> bool:
        self._seen, before = self._received, self._seen
        return self._seen > before

    def served(self) -> None:
        logger.info("Saved, as SIGUSR1 asked for.")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._received += 1


class SaveOnFile:
    """A `SaveRequest` by a file, which is removed when the checkpoint is on disk.

    Args:
      path: of the file. It is looked for every five seconds.
      clock: returns monotonic seconds; tests pass their own.
    """

    def __init__(self, path: epath.Path, clock: Callable[[], float] = time.monotonic):
        self._path = path
        self._look = EverySecs(_POLL_SECS, clock)

    def pending(self) -> bool:
        return self._look.due(0, 0) and self._path.exists()

    def served(self) -> None:
        self._path.unlink(missing_ok=True)
        logger.info("Saved, as %s asked for.", self._path)
