"""Decides when a checkpoint is written, and asks the other hooks whether it may be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from etils import epath

from hooks import checks
from hooks.base import Every, Hook, HookContext, LoopView, Saver, overrides
from hooks.save_requests import SaveRequest

logger = logging.getLogger(__name__)


class SaveListener(Protocol):
    """What is asked before a checkpoint is written and told after; every `Hook` is one."""

    def before_save(self, view: LoopView) -> str | None: ...

    def after_save(self, step: int, path: epath.Path) -> None: ...


class CheckpointSaverHook(Hook):
    """Saves a checkpoint whenever one is due or asked for, and one where the run ends.

    Nothing is saved when a run begins: where it starts there is either the checkpoint it
    was restored from, or nothing yet worth keeping. The save at the end also covers a run
    that is stopped before its first loop.

    Args:
      saver: writes the checkpoints.
      every: when one is due; each on its own, and with none only the end is saved. Loops are
        cut at the multiples of `EverySteps`, so those checkpoints have exact steps.
      listeners: asked in order before each save, and told in order after it. Any one of them
        can veto a save; all are asked all the same.
      requests: looked at behind each loop. Training waits until what is asked for is on disk.
      agree: of `(what, vote of this process)`, says whether any process votes for it: clocks,
        requests and vetoes may differ, and all processes have to save together.
    """

    def __init__(
        self,
        saver: Saver,
        every: Sequence[Every] = (),
        listeners: Sequence[SaveListener] = (),
        requests: Sequence[SaveRequest] = (),
        agree: Callable[[str, bool], bool] = lambda what, vote: vote,
    ):
        self._saver = saver
        self._every = checks.everies(every)
        self._listeners = tuple(listeners)
        self._requests = tuple(requests)
        self._agree = agree
        self._settled_step: int | None = None

    def begin(self, context: HookContext) -> None:
        checks.training(self, context)
        self._settled_step = None

    def next_step(self, step: int) -> int | None:
        return min((at for every in self._every if (at := every.next_step(step))), default=None)

    def after_loop(self, view: LoopView) -> None:
        requests = [request for request in self._requests if request.pending()]
        due = [every for every in self._every if every.due(view.before, view.step)]
        if not self._agree("save", bool(due or requests)):
            return
        self._save(view)
        if requests:
            self._saver.wait()
        for request in requests:
            request.served()

    def end(self, view: LoopView) -> None:
        self._save(view)
        self._saver.wait()

    def _save(self, view: LoopView) -> None:
        if view.step == self._settled_step:  # the end of a run that has just saved
            return
        self._settled_step = view.step
        vetoes = [(listener, listener.before_save(view)) for listener in self._listeners]
        reasons = [
            checks.reason(f"{type(listener).__name__}.before_save", veto)
            for listener, veto in vetoes
            if veto is not None
        ]
        if self._agree("veto of a save", bool(reasons)):
            why = "; ".join(reasons) or "another process has a reason"
            logger.warning("No checkpoint at step %d: %s", view.step, why)
            return
        path = self._saver.save(view)
        if path is None:  # such as the step that the run was restored from
            return
        told = [listener for listener in self._listeners if overrides(listener, "after_save")]
        if told:
            self._saver.wait()
        for listener in told:
            listener.after_save(view.step, path)
