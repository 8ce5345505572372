"""Training and evaluation by turns in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable

from etils import epath

from estimator.estimator import Estimator
from estimator.schedule.rounds import EvaluationRounds, ScheduleResult
from estimator.schedule.specs import EvalSpec, TrainSpec
from estimator.spec import ModeKeys
from hooks import Hook, HookContext, LoopView

logger = logging.getLogger(__name__)


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> ScheduleResult:
    """Trains, and evaluates checkpoints as they are saved, the last one always.

    Training is not restarted for an evaluation: it takes place between two loops, on the
    checkpoint that was just written, while the state of training stays on the devices and the
    input where it is. Devices must hold the model's variables once more for it.

    SIGTERM and Ctrl-C stop it in training and in evaluation, as they stop `Estimator.train`. A
    rerun goes on from the checkpoint, and evaluates it first if that was cut off.

    Args:
      estimator: with `train_batch_size` and `eval_batch_size`.
      train_spec: how to train. If training has reached `max_steps` already, the newest
        checkpoint is only evaluated.
      eval_spec: how to evaluate, how often, and what to export.

    Returns:
      The metrics of the last checkpoint and the paths of the exports; it unpacks as
      `metrics, exports`.

    Raises:
      TypeError, ValueError: bad arguments, before anything runs.
      PreemptedError: SIGTERM was received; everything is saved.
      Whatever `Estimator.train`, `Estimator.evaluate` and the exporters raise, as itself.
    """
    for name, given, kind in (
        ("estimator", estimator, Estimator),
        ("train_spec", train_spec, TrainSpec),
        ("eval_spec", eval_spec, EvalSpec),
    ):
        if not isinstance(given, kind):
            raise TypeError(
                f"{name} must be of the type {kind.__name__}, got {type(given).__name__}."
            )
    estimator.batch_size(ModeKeys.TRAIN)
    estimator.batch_size(ModeKeys.EVAL)
    rounds = EvaluationRounds(estimator, eval_spec)
    found = estimator.latest_checkpoint()
    if found is not None:
        rounds.make_up(found)
    estimator.train(
        train_spec.input_fn,
        hooks=[*train_spec.hooks, EvaluationHook(rounds)],
        max_steps=train_spec.max_steps,
        saving_listeners=train_spec.saving_listeners,
    )
    last = estimator.latest_checkpoint()
    if last is not None and last != rounds.last_checkpoint:
        rounds.evaluate(last)
    return rounds.finish()


class EvaluationHook(Hook):
    """Evaluates checkpoints as they are saved, as often as `rounds` allows.

    The one that is saved at the end of the run is left to whoever started it: then the memory
    and the threads of training are free, and the run has ended well.
    """

    def __init__(self, rounds: EvaluationRounds):
        self._rounds = rounds
        self._stop_requested: Callable[[], bool] = lambda: False
        self._ending = False

    def begin(self, context: HookContext) -> None:
        self._stop_requested = context.stop_requested
        self._ending = False

    def end(self, view: LoopView) -> None:
        self._ending = True  # the saver's end comes after this one

    def after_save(self, step: int, path: epath.Path) -> None:
        if self._ending:
            return
        # What it goes by is the same on all processes, as they evaluate together or not at all.
        if self._rounds.hosts.any("whether to evaluate", self._stop_requested()):
            logger.info("Checkpoint %d is not evaluated now: the run has to stop.", step)
        elif (wait_secs := self._rounds.wait_secs()) > 0:
            logger.info(
                "Checkpoint %d is not evaluated: start_delay_secs and throttle_secs allow the next "
                "evaluation in %.3g s.",
                step,
                wait_secs,
            )
        else:
            self._rounds.evaluate(str(path))
