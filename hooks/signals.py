"""SIGTERM and Ctrl-C: the loop that runs is finished, and the run stops behind it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from hooks.base import Hook, HookContext, LoopView

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DEFAULTS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class _CutShort(BaseException):
    """Takes the main thread out of what it waits for."""


class StopSignals:
    """Takes note of SIGTERM and Ctrl-C while it is entered, in place of what Python does.

    A second Ctrl-C raises KeyboardInterrupt at once. Handlers that the user has set stay in
    force, and those that were there before come back at the end. Signals are for the main
    thread alone: entered on another one it watches nothing, and says so in the log.

    Attributes:
      received: the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._cuts_short = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is not threading.main_thread():
            logger.info("SIGTERM and Ctrl-C are not watched: this is not the main thread.")
            return self
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) is default:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def unless_received(self, wait: Callable[[], T]) -> T | None:
        """Returns what `wait` returns, or None as soon as there is a signal: what may last for
        ever, such as waiting for input, is then cut short."""
        try:
            try:
                self._cuts_short = True
                return None if self.received is not None else wait()
            finally:
                self._cuts_short = False
        except _CutShort:
            return None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received is not None:
            raise KeyboardInterrupt
        if self.received is None:
            self.received = signal.Signals(number)
        if self._cuts_short:
            self._cuts_short = False
            raise _CutShort


class StopOnSignalHook(Hook):
    """Stops the run before its next loop once `signals` has received one."""

    def __init__(self, signals: StopSignals):
        self._signals = signals

    def begin(self, context: HookContext) -> str | None:
        return self._reason()

    def before_loop(self, step: int) -> str | None:
        return self._reason()

    def after_loop(self, view: LoopView) -> str | None:
        return self._reason()

    def _reason(self) -> str | None:
        received = self._signals.received
        return None if received is None else f"{received.name} was received"
