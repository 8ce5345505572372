"""The process that holds a lock: its name, and whether it still lives."""

from __future__ import annotations

import dataclasses
import os
import socket
import uuid
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds the lock of a model_dir.

    Attributes:
      host: its name.
      place: tells the processes whose numbers mean the same from all others: one start of one
        kernel, and of its containers one. (Containers may share the name of their host.)
      pid: of the process there.
      started: when that process started, in ticks since the host did: a number of processes
        come to have the same pid, above all in containers. Empty where it cannot be known.
      nonce: tells two holders apart whatever else they share.
    """

    host: str
    place: str
    pid: int
    started: str
    nonce: str

    @staticmethod
    def this_process() -> Holder:
        pid = os.getpid()
        return Holder(
            host=socket.gethostname(),
            place=_place(),
            pid=pid,
            started=_started(pid),
            nonce=uuid.uuid4().hex,
        )

    @property
    def is_near(self) -> bool:
        """Whether this process can know if that one lives."""
        return self.place == _place()

    def is_dead(self) -> bool:
        """Says whether the process, which is near, is gone."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it lives, and is another user's
        return self.started != _started(self.pid)


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()  # a system that has no such files, nor such containers


def _started(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""  # gone, or a system that has no such files
    fields = status.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]  # a zombie is dead, though it has a pid
