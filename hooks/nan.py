"""Stops a run whose loss is no longer a number, and keeps it out of the checkpoints."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from hooks.base import Hook, HookContext, LoopView

logger = logging.getLogger(__name__)


class NanLossError(FloatingPointError):
    """The loss, or a variable of the state, became NaN or infinite.

    Attributes:
      step: the first global step with such a loss; the step of the checkpoint that was due if
        the loss is finite and a variable is not.
      loss: the loss at that step.
      variable: the variable's name, such as `params/Dense_0/kernel`; None if it is the loss.
      report: with `RunConfig(debug_nans=True)` an `est.debug.TensorReport` of that step, else
        None.
    """

    def __init__(self, step: int, loss: float, variable: str | None = None, report: Any = None):
        super().__init__(step, loss, variable)
        self.step = step
        self.loss = loss
        self.variable = variable
        self.report = report

    def __str__(self) -> str:
        what = f"The loss is {self.loss} at step {self.step}"
        if self.variable is not None:
            what = (
                f"The variable {self.variable} is no longer a number after step {self.step}, whose "
                f"loss is {self.loss}"
            )
        if self.report is not None:
            return f"{what}. {self.report.verdict}"
        return (
            f"{what}. Try a lower learning rate or gradient clipping, and look at the batch of "
            "that step; RunConfig(debug_nans=True) says in which layer and operation it began."
        )


class NanHook(Hook):
    """Ends the run when a loss is NaN or infinite, and names the first such step.

    The device is never made to wait: after each loop the losses of the loop *before* it are
    judged, which are ready or nearly so, while the present one runs. So a run ends one loop
    late, always, and on all hosts alike. Before a checkpoint is written, and at the end,
    everything is judged that has run, the state too, since a loss does not show what the update
    after it did: no checkpoint has a bad loss behind it, or in it a parameter that is not finite
    or a NaN among the model's other variables and the optimizer's state.

    Args:
      fail_on_nan: raise `NanLossError`. If False, the run stops without an error, a warning
        names the step, and no further checkpoint is written.
    """

    def __init__(self, fail_on_nan: bool = True):
        self._fail_on_nan = fail_on_nan
        self._unjudged: LoopView | None = None
        self._found: NanLossError | None = None

    def begin(self, context: HookContext) -> None:
        self._found = None

    def after_loop(self, view: LoopView) -> str | None:
        self._judge_previous()
        self._unjudged = view
        return self._reason()

    def before_save(self, view: LoopView) -> str | None:
        self._judge_all(view)
        if self._found is None and (variable := view.bad_variable) is not None:
            losses = view.losses
            self._find(view, view.step, float(losses[-1]) if losses.size else np.nan, variable)
        return self._reason()

    def end(self, view: LoopView) -> None:
        self._judge_all(view)

    def on_error(self, error: BaseException) -> None:
        self._unjudged = None

    def _judge_all(self, view: LoopView) -> None:
        if self._unjudged is not view:
            self._judge_previous()
        self._unjudged = None
        self._judge(view)

    def _judge_previous(self) -> None:
        previous, self._unjudged = self._unjudged, None
        if previous is not None:
            self._judge(previous)

    def _judge(self, view: LoopView) -> None:
        if self._found is not None:
            return
        losses = view.losses
        bad = np.flatnonzero(~np.isfinite(losses))
        if bad.size == 0:
            return
        first = int(bad[0])
        self._find(view, view.before + 1 + first, float(losses[first]))

    def _find(self, view: LoopView, step: int, loss: float, variable: str | None = None) -> None:
        self._found = error = NanLossError(step, loss, variable)
        if view.trace_step is not None and step > view.before:
            try:
                error.report = view.trace_step(step)
            except Exception as failed:  # the loss is what went wrong
                error.add_note(f"The step could not be traced: {type(failed).__name__}: {failed}")
            else:
                logger.warning("%s", error.report)
        if self._fail_on_nan:
            raise error
        logger.warning("%s", error)

    def _reason(self) -> str | None:
        return None if self._found is None else f"NanHook: {self._found}"
