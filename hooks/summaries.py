"""Writes loss and metrics for TensorBoard."""

from __future__ import annotations

from hooks import checks
from hooks.base import Every, EverySteps, Hook, HookContext, LoopView, Writer


class SummaryHook(Hook):
    """Writes the scalars `loss` and every metric, each with its own step, in the chief process.

    They are written one loop late, when they are there: the device is never made to wait.

    Args:
      writer: where they go; whoever made it closes it. It is flushed when the run ends.
      every: with `EverySteps`, exactly the steps that are multiples are written, also those
        in the middle of a loop; with `EverySecs`, the last step of the loop when due.
    """

    def __init__(self, writer: Writer, every: Every):
        self._writer = writer
        self._every = checks.every(every)
        self._is_chief = True
        self._pending: tuple[LoopView, range] | None = None

    def begin(self, context: HookContext) -> None:
        self._is_chief = context.is_chief
        self._pending = None

    def after_loop(self, view: LoopView) -> None:
        self._write_pending()
        steps = self._due_steps(view)
        # The values are read only if there is a step to write.
        if steps and self._is_chief:
            self._pending = view, steps

    def _write_pending(self) -> None:
        if self._pending is None:
            return
        (view, steps), self._pending = self._pending, None
        series = view.scalars
        for step in steps:
            for name, values in series.items():
                self._writer.add_scalar(name, float(values[step - view.before - 1]), step)

    def end(self, view: LoopView) -> None:
        self._write_pending()
        if self._is_chief:
            self._writer.flush()

    def on_error(self, error: BaseException) -> None:
        try:
            self._write_pending()
        finally:
            if self._is_chief:
                self._writer.flush()

    def _due_steps(self, view: LoopView) -> range:
        if isinstance(self._every, EverySteps):
            return range(self._every.next_step(view.before), view.step + 1, self._every.steps)
        if self._every.due(view.before, view.step):
            return range(view.step, view.step + 1)
        return range(0)
