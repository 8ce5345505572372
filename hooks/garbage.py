"""Keeps Python's garbage collector out of the loops."""

from __future__ import annotations

import gc

from hooks import checks
from hooks.base import Every, Hook, HookContext, LoopView


class GarbageCollectHook(Hook):
    """Collects Python's garbage between loops only, when due, and never elsewhere.

    Automatic collections come at different times in different processes, and then all the
    others wait. Collected here, the device is at work meanwhile. The collector is as it was
    before when the run has ended.

    Args:
      every: when garbage is collected.
    """

    def __init__(self, every: Every):
        self._every = checks.every(every)
        self._was_enabled = False

    def begin(self, context: HookContext) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def after_loop(self, view: LoopView) -> None:
        if self._every.due(view.before, view.step):
            gc.collect()

    def end(self, view: LoopView) -> None:
        self._restore()

    def on_error(self, error: BaseException) -> None:
        self._restore()

    def _restore(self) -> None:
        if self._was_enabled:
            gc.enable()
