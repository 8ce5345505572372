"""One evaluation after the other: when the next may begin, and what is exported behind it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from estimator import checkpoints
from estimator.estimator import Estimator
from estimator.export import Exporter
from estimator.schedule.specs import EvalSpec
from hooks import EvalResult, read_eval_results

logger = logging.getLogger(__name__)


class ScheduleResult(NamedTuple):
    """What came of training and evaluating by turns.

    Attributes:
      metrics: of the last checkpoint: what `Estimator.evaluate` returns.
      exports: name of an exporter -> path of the last export that it made. One that has made none
        is left out.
    """

    metrics: Mapping[str, Any]
    exports: Mapping[str, str]


class EvaluationRounds:
    """Evaluates checkpoints one after the other, and hands each to the exporters.

    Args:
      estimator: whose checkpoints.
      spec: how.
      clock: returns monotonic seconds; tests pass their own.

    Attributes:
      last_checkpoint: the path of the checkpoint that was evaluated last, or None.
      hosts: the processes that evaluate.
    """

    def __init__(
        self,
        estimator: Estimator,
        spec: EvalSpec,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.last_checkpoint: str | None = None
        self.hosts = estimator.hosts
        self._estimator = estimator
        self._spec = spec
        self._clock = clock
        self._may_begin = clock() + spec.start_delay_secs
        self._metrics: Mapping[str, Any] = {}
        self._exports: dict[str, str] = {}

    def wait_secs(self) -> float:
        """Returns for how long no evaluation may begin yet, by the clock of process 0."""
        left = max(0.0, self._may_begin - self._clock())
        return self.hosts.gather("time of the next evaluation", left)[0]

    def on_record(self) -> dict[int, EvalResult]:
        """Returns what has been evaluated by global step, by earlier runs too."""
        folder = self._estimator.eval_dir(self._spec.name)
        return {result.global_step: result for result in read_eval_results(folder)}

    def make_up(self, checkpoint: str) -> None:
        """Does for the checkpoint that a run was killed behind what it did not come to: evaluates
        it if that has not been done, and calls the exporters in any case."""
        step = checkpoints.global_step(checkpoint)
        result = self.hosts.on_chief(
            f"look for an evaluation of step {step}", lambda: self.on_record().get(step)
        )
        if result is None:
            logger.info("Checkpoint %s has not been evaluated yet.", checkpoint)
            self.evaluate(checkpoint)
        else:
            self._export(checkpoint, {**result.values, "global_step": result.global_step})

    def evaluate(self, checkpoint: str) -> None:
        """Evaluates the checkpoint at once, and calls the exporters."""
        self._may_begin = self._clock() + self._spec.throttle_secs
        self._metrics = self._estimator.evaluate(
            self._spec.input_fn,
            steps=self._spec.steps,
            hooks=self._spec.hooks,
            checkpoint_path=checkpoint,
            name=self._spec.name,
        )
        self.last_checkpoint = checkpoint
        self._export(checkpoint, self._metrics)

    def finish(self) -> ScheduleResult:
        """Calls the exporters for the last time, and returns what came of it all."""
        if self.last_checkpoint is None:
            logger.warning(
                "There is no checkpoint in %s, so nothing was evaluated.", self._estimator.model_dir
            )
            return ScheduleResult({}, {})
        last, metrics = self.last_checkpoint, self._metrics
        self._call_exporters(lambda each: each.finish(self._estimator, last, metrics))
        return ScheduleResult(self._metrics, self._exports)

    def _export(self, checkpoint: str, metrics: Mapping[str, Any]) -> None:
        self._call_exporters(lambda each: each.export(self._estimator, checkpoint, metrics))

    def _call_exporters(self, call: Callable[[Exporter], str | None]) -> None:
        """Calls each exporter on process 0, and keeps the paths of what they made on all."""

        def exports() -> dict[str, str]:
            made = [(exporter.name, call(exporter)) for exporter in self._spec.exporters]
            return {name: path for name, path in made if path is not None}

        self._exports.update(self.hosts.on_chief("exporters", exports))
