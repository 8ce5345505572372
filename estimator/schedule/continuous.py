"""Evaluation in a process of its own, of the checkpoints that another process saves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from etils import epath

from estimator import checkpoints, training_end
from estimator.estimator import Estimator
from estimator.schedule.rounds import EvaluationRounds, ScheduleResult
from estimator.schedule.specs import EvalSpec
from estimator.spec import ModeKeys
from hooks.checks import positive_secs

logger = logging.getLogger(__name__)


def evaluate_continuously(
    estimator: Estimator,
    eval_spec: EvalSpec,
    *,
    idle_timeout_secs: float | None = 3600.0,
    poll_secs: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ScheduleResult:
    """Evaluates the checkpoints that another process trains and saves, until training has ended.

    Each checkpoint is evaluated once, in the order of their steps, over restarts of this process
    too; the last one always. With `throttle_secs` it is only the newest one at each time, and the
    log names those that are left out. Only whole checkpoints are seen.

    It ends when the process that trains has left word in model_dir that training is over (as
    `Estimator.train` and `train_and_evaluate` do when they return), and every checkpoint is
    evaluated; or when there was no new checkpoint for `idle_timeout_secs`, since a process that
    was killed leaves no word. A process that is started when all is done evaluates the newest
    checkpoint again. Where training had ended once and is to go on, start it before this: its
    first act is to take back its word.

    Args:
      estimator: with the model_dir that is trained in, and `eval_batch_size`.
      eval_spec: how to evaluate, how often, and what to export.
      idle_timeout_secs: how long to wait for the next checkpoint; None waits for ever.
      poll_secs: between two looks into model_dir.
      clock: returns monotonic seconds; tests pass their own.
      sleep: waits for so many seconds; likewise.

    Returns:
      As `train_and_evaluate`, of what this process has evaluated.

    Raises:
      TypeError, ValueError: bad arguments, before anything runs.
      PreemptedError: SIGTERM was received in an evaluation.
      Whatever `Estimator.evaluate` and the exporters raise, as itself.
    """
    if not isinstance(eval_spec, EvalSpec):
        raise TypeError(f"eval_spec must be an EvalSpec, got {type(eval_spec).__name__}.")
    if idle_timeout_secs is not None:
        positive_secs("idle_timeout_secs", idle_timeout_secs)
    positive_secs("poll_secs", poll_secs)
    estimator.batch_size(ModeKeys.EVAL)
    if estimator.hosts.count > 1:
        raise ValueError(
            f"evaluate_continuously runs in one process outside of the job that trains, and this "
            f"is one of {estimator.hosts.count} processes of a job. Start it by itself, or use "
            "train_and_evaluate, which evaluates on all of them."
        )
    rounds = EvaluationRounds(estimator, eval_spec, clock)
    news = _News(estimator.model_dir, seen=set(rounds.on_record()))
    newest = estimator.latest_checkpoint()
    if newest is not None and news.knows(newest):
        rounds.make_up(newest)
    idle_since, told = clock(), False
    while True:
        # Asked before the folder is listed: what training saved last is there by then.
        ended_at = training_end.ended_at(epath.Path(estimator.model_dir))
        waiting = news.look()
        if waiting and (ended_at is not None or rounds.wait_secs() == 0):
            if eval_spec.throttle_secs > 0:
                news.leave_out(waiting[:-1])
            _evaluate_unless_removed(rounds, news, news.look()[0])
            idle_since, told = clock(), False
            continue
        if not waiting and ended_at is not None:
            logger.info("Training has ended at step %d: evaluation ends too.", ended_at)
            break
        idle_secs = 0.0 if waiting else clock() - idle_since
        if idle_timeout_secs is not None and idle_secs >= idle_timeout_secs:
            logger.warning(
                "No new checkpoint in %s for %g s, and no word that training has ended: "
                "evaluation ends.",
                estimator.model_dir,
                idle_secs,
            )
            break
        if not waiting and not told:
            logger.info("Waiting for new checkpoint in %s.", estimator.model_dir)
            told = True
        sleep(poll_secs)
    newest = estimator.latest_checkpoint()
    if newest is not None and rounds.last_checkpoint is None:
        rounds.evaluate(newest)
    return rounds.finish()


class _News:
    """The checkpoints of a model_dir that have not been seen to yet."""

    def __init__(self, model_dir: str, seen: set[int]):
        self._folder = checkpoints.directory(epath.Path(model_dir))
        self._seen = seen

    def look(self) -> list[epath.Path]:
        """Returns those that are there now, in the order of their steps."""
        found = self._folder.iterdir() if self._folder.is_dir() else ()
        steps = {int(path.name) for path in found if path.name.isdigit()}
        return [self._folder / str(step) for step in sorted(steps - self._seen)]

    def knows(self, checkpoint: str) -> bool:
        """Says whether a checkpoint has been seen to."""
        return int(epath.Path(checkpoint).name) in self._seen

    def seen(self, checkpoint: epath.Path) -> None:
        """Takes note that a checkpoint needs no more to be seen to."""
        self._seen.add(int(checkpoint.name))

    def leave_out(self, left: list[epath.Path]) -> None:
        """Takes note of checkpoints that came too soon behind others, and says so."""
        for path in left:
            logger.info("Checkpoint %s is not evaluated: there is a newer one.", path.name)
            self.seen(path)


def _evaluate_unless_removed(rounds: EvaluationRounds, news: _News, checkpoint: epath.Path) -> None:
    """Evaluates a checkpoint; one that makes room for newer ones meanwhile is left out."""
    try:
        rounds.evaluate(str(checkpoint))
    except (FileNotFoundError, checkpoints.CheckpointError) as error:
        unreadable = isinstance(error, checkpoints.CheckpointError) or not checkpoint.exists()
        newer = [path for path in news.look() if int(path.name) > int(checkpoint.name)]
        if not (unreadable and newer):
            raise
        logger.warning("Checkpoint %s has made room before its evaluation: %s", checkpoint, error)
    news.seen(checkpoint)
