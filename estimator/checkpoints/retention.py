"""Which checkpoints are kept when a new one has been written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from etils import epath

from estimator.config import KeepBest
from hooks import EvalResult, eval_dir, read_eval_results


class PreservationPolicy(Protocol):
    """Orbax's protocol of that name: says which of the checkpoints, oldest first, are kept."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]: ...


@dataclasses.dataclass(frozen=True)
class Best:
    """A `PreservationPolicy`: keeps the best of the checkpoints that were evaluated.

    (Orbax has a `BestN`. It lets the newest take a place, and knows only metrics that are there
    when a checkpoint is saved; a NaN among them puts its order into disorder.)

    Args:
      keep: how many, by which metric.
      read_results: returns what the evaluations found so far.
    """

    keep: KeepBest
    read_results: Callable[[], Sequence[EvalResult]]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        results = {result.global_step: result for result in self.read_results()}
        judged: list[tuple[float, int]] = []
        for checkpoint in checkpoints[:-1]:
            result = results.get(checkpoint.step)
            if result is None or result.wall_time < checkpoint.time.timestamp():
                continue  # what was evaluated then is an earlier checkpoint of that step
            value = result.values.get(self.keep.metric, math.nan)
            if not math.isnan(value):
                judged.append((value if self.keep.mode == "max" else -value, checkpoint.step))
        best = {step for _, step in sorted(judged)[-self.keep.count :]}  # of equals the newer
        return [checkpoint.step in best for checkpoint in checkpoints]


def preservation_policy(
    model_dir: epath.Path,
    *,
    newest: int | None,
    every_n_hours: float | None,
    best: KeepBest | None,
) -> PreservationPolicy:
    """Returns orbax's policy: a checkpoint is kept for any one of the reasons.

    Args:
      model_dir: of the checkpoints.
      newest: how many of the newest to keep; None keeps all.
      every_n_hours: of those at least so far apart, each, the first included.
      best: and these.
    """
    from orbax.checkpoint import checkpoint_managers as ocp

    policies: list[Any] = [ocp.LatestN(newest)]
    if every_n_hours is not None:
        policies.append(ocp.EveryNSeconds(every_n_hours * 3600))  # pyright: ignore[reportArgumentType]
    if best is not None:
        policies.append(Best(best, lambda: read_eval_results(eval_dir(model_dir, best.name))))
    return ocp.AnyPreservationPolicy(policies)
