"""The handlers of SIGTERM and Ctrl-C while a run lasts."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

_DEFAULTS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class SignalHandlers:
    """Calls `on_signal` in place of what Python does. Handlers of the user's own stay in force.

    Args:
      on_signal: called on the main thread, between any two of its instructions.
    """

    def __init__(self, on_signal: Callable[[signal.Signals], None]):
        self._on_signal = on_signal
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Puts them in place; for the main thread alone."""
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) is default:
                self._before[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Puts back what was there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._on_signal(signal.Signals(number))
