"""Tells how training goes: loss, metrics and speed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from hooks import checks
from hooks.base import Every, Hook, HookContext, LoopView, Writer

logger = logging.getLogger(__name__)


class LoggingHook(Hook):
    """Logs the step, its loss and its metrics, through `logging`, in the chief process.

    Also once where the run ends, so that a short run reports a loss too. A line comes one loop
    late, when its values are there: the device is never made to wait.

    Args:
      every: when a line is due; it reports the last step of the loop.
      formatter: makes the line from `{"step": ..., "loss": ..., **metrics}` (an int, then
        floats; predict has no loss).
      values: which of them, by name: "loss" or a metric of the EstimatorSpec; all if None.

    Raises:
      ValueError: from the run, at the first line: it has no value of such a name.
    """

    def __init__(
        self,
        every: Every,
        formatter: Callable[[Mapping[str, int | float]], str] | None = None,
        values: Sequence[str] | None = None,
    ):
        self._every = checks.every(every)
        self._formatter = formatter or _one_line
        self._names = None if values is None else _names(values)
        self._is_chief = True
        self._logged_step = -1
        self._pending: LoopView | None = None

    def begin(self, context: HookContext) -> None:
        self._is_chief = context.is_chief
        self._pending = None
        self._logged_step = context.step  # a run of no steps has nothing to tell

    def after_loop(self, view: LoopView) -> None:
        self._log_pending()
        if self._every.due(view.before, view.step):
            self._pending = view

    def end(self, view: LoopView) -> None:
        self._log_pending()
        if view.step != self._logged_step:
            self._log(view)

    def on_error(self, error: BaseException) -> None:
        self._log_pending()

    def _log_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._log(pending)

    def _log(self, view: LoopView) -> None:
        self._logged_step = view.step
        if not self._is_chief:
            return
        series = view.scalars
        chosen = series if self._names is None else self._names
        values: dict[str, int | float] = {"step": view.step}
        for name in chosen:
            if name not in series:
                raise ValueError(
                    f"LoggingHook(values={self._names}): there is no {name!r} in mode "
                    f"{view.mode!r}. There are {sorted(series)}; what else is to be logged has to "
                    "be among the metrics of the EstimatorSpec."
                )
            values[name] = float(series[name][-1])
        logger.info("%s", self._formatter(values))


def _names(values: Sequence[str]) -> list[str]:
    if isinstance(values, str) or not all(isinstance(name, str) for name in values):
        raise TypeError(
            f"values must be a list of names, such as ['loss', 'accuracy'], got {values!r}. A "
            "tensor of model_fn has no value on the host: give it a name in the metrics of the "
            "EstimatorSpec."
        )
    return list(values)


def _one_line(values: Mapping[str, int | float]) -> str:
    rest = [f"{name} = {value:.6g}" for name, value in values.items() if name != "step"]
    return f"step {values['step']}: {', '.join(rest)}"


class ThroughputHook(Hook):
    """Measures the speed of training over the whole time since it last reported.

    Logs, and writes if there is a writer, in the chief process: `global_step/sec`,
    `examples/sec` and `input_wait_fraction` (the part of the time, 0 to 1, that was spent
    waiting for input: near 1, the input is too slow for the devices). The first interval
    contains the time to compile.

    Args:
      every: when a report is due.
      writer: where the scalars go besides the log; whoever made it closes it.
    """

    def __init__(self, every: Every, writer: Writer | None = None):
        self._every = checks.every(every)
        self._writer = writer
        self._is_chief = True
        self._reset()

    def _reset(self) -> None:
        self._steps = 0
        self._examples = 0
        self._secs = 0.0
        self._input_wait_secs = 0.0

    def begin(self, context: HookContext) -> None:
        self._is_chief = context.is_chief
        self._reset()

    def after_loop(self, view: LoopView) -> None:
        self._steps += view.step - view.before
        self._examples += view.examples
        self._secs += view.elapsed_secs
        self._input_wait_secs += view.input_wait_secs
        # A coarse clock may not have moved: such an interval goes on to the next report.
        if self._every.due(view.before, view.step) and self._secs > 0:
            if self._is_chief:
                self._report(view.step)
            self._reset()

    def _report(self, step: int) -> None:
        steps_per_sec = self._steps / self._secs
        examples_per_sec = self._examples / self._secs
        input_wait_fraction = self._input_wait_secs / self._secs
        logger.info(
            "step %d: %.6g steps/sec, %.6g examples/sec, %.0f%% of the time waiting for input",
            step,
            steps_per_sec,
            examples_per_sec,
            100 * input_wait_fraction,
        )
        if self._writer is not None:
            self._writer.add_scalar("global_step/sec", steps_per_sec, step)
            self._writer.add_scalar("examples/sec", examples_per_sec, step)
            self._writer.add_scalar("input_wait_fraction", input_wait_fraction, step)
