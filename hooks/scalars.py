"""What hooks have in common that hand on the loss and the metrics of single steps."""

from __future__ import annotations

from collections.abc import Mapping

from hooks import checks
from hooks.base import Every, EverySteps, Hook, HookContext, LoopView


class ScalarsHook(Hook):
    """Hands the loss and the metrics of the due steps to `write_scalars`, in the chief process.

    One loop late, when they are there: the device is never made to wait. Derive from it to send
    them to where yours are collected.

    Args:
      every: when scalars are due. With `EverySteps`, exactly the steps that are multiples are
        written, also those in the middle of a loop; with `EverySecs`, the last step of the loop
        when due. None for never.
    """

    def __init__(self, every: Every | None):
        self._every = None if every is None else checks.every(every)
        self._is_chief = True
        self._pending: tuple[LoopView, range] | None = None

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Called for each due step, in order, with `loss` and the metrics by name."""
        raise NotImplementedError

    def write_rest(self, view: LoopView) -> None:
        """Called for each loop behind its scalars, for what else there is to write."""

    def flush(self) -> None:
        """Called when the run ends and all is written."""

    def begin(self, context: HookContext) -> None:
        self._is_chief = context.is_chief
        self._pending = None

    def after_loop(self, view: LoopView) -> None:
        self._write_pending()
        if self._is_chief:
            self._pending = view, self._due_steps(view)

    def end(self, view: LoopView) -> None:
        self._finish()

    def on_error(self, error: BaseException) -> None:
        self._finish()

    def _finish(self) -> None:
        try:
            self._write_pending()
        finally:
            if self._is_chief:
                self.flush()

    def _write_pending(self) -> None:
        if self._pending is None:
            return
        (view, steps), self._pending = self._pending, None
        if steps:  # the values are read only if there is a step to write
            series = view.scalars
            for step in steps:
                at = step - view.before - 1
                self.write_scalars(step, {name: float(all_[at]) for name, all_ in series.items()})
        self.write_rest(view)

    def _due_steps(self, view: LoopView) -> range:
        if self._every is None:
            return range(0)
        if isinstance(self._every, EverySteps):
            return range(self._every.next_step(view.before), view.step + 1, self._every.steps)
        if self._every.due(view.before, view.step):
            return range(view.step, view.step + 1)
        return range(0)
