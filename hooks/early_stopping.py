"""Stops training when evaluations get no better."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from hooks import checks
from hooks.base import Hook, HookContext, LoopView
from hooks.eval_results import RESULTS_FILE, EvalResult, eval_dir, read_eval_results

logger = logging.getLogger(__name__)

_SIGNS = {"min": 1, "max": -1}


class EarlyStoppingHook(Hook):
    """Stops training once a metric of the evaluations has not improved for so many steps.

    It reads what `evaluate` writes down in model_dir, so it does not matter where that runs:
    between two calls of train, behind a checkpoint, or in another process. What counts are the
    evaluations of steps up to the present one, in the order of their steps; a run that was
    killed and resumed is judged like one that was not. Judged before each loop: no step is made
    after the evaluation that decides. A NaN is never better.

    Args:
      metric: "loss", or a metric by its name in the results of `evaluate`.
      patience_steps: global steps from the best evaluation to the one that stops the run.
      mode: "min" if lower is better, "max" if higher is.
      min_delta: what is better by no more than this is no improvement; not negative.
      min_steps: global step before which the run is not stopped.
      name: of the evaluations, as in `evaluate(name=)`.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        patience_steps: int,
        mode: str = "min",
        min_delta: float = 0.0,
        min_steps: int = 0,
        name: str | None = None,
    ):
        if mode not in _SIGNS:
            raise ValueError(
                f"mode={mode!r} is not known. Use 'min' if lower is better, 'max' if higher is."
            )
        if not min_delta >= 0:
            raise ValueError(f"min_delta must not be negative, got {min_delta!r}.")
        self._metric = metric
        self._patience_steps = checks.positive_int("patience_steps", patience_steps)
        self._sign = _SIGNS[mode]
        self._min_delta = min_delta
        self._min_steps = 0 if min_steps == 0 else checks.positive_int("min_steps", min_steps)
        self._name = name
        self._read: tuple[int, int] | None = None
        self._results: list[EvalResult] = []

    def begin(self, context: HookContext) -> None:
        checks.training(self, context)
        self._folder = eval_dir(context.model_dir, self._name)
        self._read = None
        self._results = []

    def before_loop(self, step: int) -> str | None:
        self._read_news()
        return self._judge([result for result in self._results if result.global_step <= step])

    def end(self, view: LoopView) -> None:
        self._read_news()
        if not self._results:
            logger.warning(
                "EarlyStoppingHook had nothing to judge: there are no evaluations in %s. Evaluate "
                "between calls of train, or in a process of its own, with the same name.",
                self._folder,
            )

    def _read_news(self) -> None:
        try:
            now = (self._folder / RESULTS_FILE).stat()
        except FileNotFoundError:
            return
        if (state := (now.length, now.mtime)) == self._read:
            return
        self._results = read_eval_results(self._folder)
        self._read = state
        for result in self._results:
            if self._metric not in result.values:
                raise ValueError(
                    f"EarlyStoppingHook(metric={self._metric!r}): the evaluation of step "
                    f"{result.global_step} in {self._folder} has no such number. It has "
                    f"{sorted(result.values)}."
                )

    def _judge(self, results: Sequence[EvalResult]) -> str | None:
        if not results:
            return None
        best, best_step, last_step = math.inf, results[0].global_step, results[-1].global_step
        for result in results:
            value = self._sign * result.values[self._metric]
            if value < best - self._min_delta:
                best, best_step = value, result.global_step
        if last_step - best_step < self._patience_steps or last_step < self._min_steps:
            return None
        return (
            f"EarlyStoppingHook: {self._metric} is best at step {best_step}, with "
            f"{self._sign * best:.6g}, and no better {last_step - best_step} steps later"
        )
