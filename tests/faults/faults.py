"""A fault: at the n-th time that a run comes by a point, something happens to it."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import sys
import threading
import time
from typing import Any

WHAT = ("SIGKILL", "SIGTERM", "SIGINT", "raise")

FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}


class InjectedError(OSError):
    """What `raise` raises."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to a run, where and when.

    Attributes:
      where: the point: the name of a function of the user's in the script, "file" (each use of a
        file below model_dir), one of `FILE_EVENTS`, "time" (each millisecond), or "never".
      nth: time that the run comes by, from 1.
      what: one of `WHAT`.
    """

    where: str = "never"
    nth: int = 1
    what: str = "SIGKILL"

    def __str__(self) -> str:
        return f"{self.what}@{self.where}:{self.nth}"


NO_FAULT = Fault()


class Injector:
    """Counts how often a run comes by each point, and lets the fault happen there."""

    def __init__(self, fault: Fault, model_dir: str):
        self._fault = fault
        self._model_dir = model_dir
        self._count = itertools.count(1)
        self.file_events = 0
        sys.addaudithook(self._audit)
        if fault.where == "time":
            threading.Thread(target=self._after_a_time, daemon=True).start()

    def point(self, where: str) -> None:
        """Called at each point."""
        if where == self._fault.where and next(self._count) == self._fault.nth:
            self._happen()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and str(arguments[0]).startswith(self._model_dir):
            self.file_events += 1
            self.point("file")
            self.point(event)

    def _after_a_time(self) -> None:
        time.sleep(self._fault.nth / 1000)
        self._happen()

    def _happen(self) -> None:
        if self._fault.what == "raise":
            raise InjectedError(str(self._fault))
        os.kill(os.getpid(), getattr(signal, self._fault.what))
