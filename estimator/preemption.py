"""What a run that was told to go raises, once nothing would be lost."""

from __future__ import annotations

import signal
from pathlib import Path

EXIT_CODE = 128 + signal.SIGTERM
"""Of a script that was preempted: 143, what shells and schedulers know as ended by SIGTERM."""


class PreemptedError(SystemExit):
    """SIGTERM has ended the run, and its state is saved; the same script goes on from there.

    As a SystemExit it ends a script with exit code 143 and without a traceback, through every
    `except Exception`; catch it by its name to do something else.

    Attributes:
      step: the global step that was reached.
      path: the checkpoint to go on from, or None if there is none.
    """

    def __init__(self, step: int, path: Path | None):
        super().__init__(EXIT_CODE)
        self.step = step
        self.path = path

    def __str__(self) -> str:
        return f"SIGTERM was received; training goes on from step {self.step}, {self.path}."


def stop_error(received: signal.Signals, step: int, path: Path | None) -> BaseException:
    """Returns what to raise in a run that `received` has ended: KeyboardInterrupt for Ctrl-C."""
    return KeyboardInterrupt() if received is signal.SIGINT else PreemptedError(step, path)
