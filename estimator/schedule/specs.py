"""What `train_and_evaluate` is told of its two halves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from estimator.export import Exporter
from hooks import Hook, SaveListener
from hooks.checks import list_of_hooks, list_of_save_listeners, positive_int


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """How to train; the arguments of `Estimator.train`.

    Attributes:
      input_fn: as in `Estimator.train`.
      max_steps: global step at which to stop; None trains to the end of the input.
      hooks: run between the loops of training.
      saving_listeners: told of each checkpoint.
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Hook] = ()
    saving_listeners: Sequence[SaveListener] = ()

    def __post_init__(self) -> None:
        _check_input_fn(self)
        if self.max_steps is not None:
            positive_int("TrainSpec.max_steps", self.max_steps)
        list_of_hooks("TrainSpec.hooks", self.hooks)
        list_of_save_listeners("TrainSpec.saving_listeners", self.saving_listeners)


@dataclasses.dataclass(frozen=True)
class EvalSpec:
    """How to evaluate, how often, and what to export behind it.

    With the times left at 0 every checkpoint is evaluated, and `RunConfig.save_checkpoints_steps`
    or `_secs` says how often that is. The last checkpoint is evaluated whatever the times are.

    Attributes:
      input_fn: as in `Estimator.evaluate`; called for each evaluation.
      steps: batches to evaluate at most; None evaluates to the end of the input, which then must
        have one.
      name: tells evaluations on different data apart.
      hooks: run between the loops of each evaluation.
      exporters: given each evaluated checkpoint and what was measured, such as
        `est.export.BestExporter`; their names differ.
      start_delay_secs: no evaluation begins within so many seconds of the start.
      throttle_secs: seconds between the beginnings of two evaluations, at least; checkpoints
        that come in between are not evaluated, and the log says so.
    """

    input_fn: Callable[..., Any]
    steps: int | None = None
    name: str | None = None
    hooks: Sequence[Hook] = ()
    exporters: Sequence[Exporter] = ()
    start_delay_secs: float = 0.0
    throttle_secs: float = 0.0

    def __post_init__(self) -> None:
        _check_input_fn(self)
        if self.steps is not None:
            positive_int("EvalSpec.steps", self.steps)
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise ValueError(f"EvalSpec.name must be a string or None, got {self.name!r}.")
        list_of_hooks("EvalSpec.hooks", self.hooks)
        _check_exporters(self.exporters)
        for name in ("start_delay_secs", "throttle_secs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"EvalSpec.{name} must be seconds, 0 or more, got {value!r}.")


def _check_input_fn(spec: TrainSpec | EvalSpec) -> None:
    if not callable(spec.input_fn):
        raise TypeError(
            f"{type(spec).__name__}.input_fn must be a function, got "
            f"{type(spec.input_fn).__name__}. Pass the function, not what it returns."
        )


def _check_exporters(exporters: Any) -> None:
    if not isinstance(exporters, Sequence):
        raise TypeError(
            f"EvalSpec.exporters must be a list of exporters, got {exporters!r}. Write "
            "exporters=[...]."
        )
    for exporter in exporters:
        if not isinstance(exporter, Exporter):
            raise TypeError(
                f"EvalSpec.exporters must be est.export.Exporter objects, got {exporter!r}."
            )
    names = [exporter.name for exporter in exporters]
    if len(set(names)) < len(names):
        raise ValueError(
            f"EvalSpec.exporters have the names {names}, and would write to the same folder. Give "
            "each a name of its own."
        )
