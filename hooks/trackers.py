"""Hands loss and metrics on to experiment trackers: Weights & Biases and MLflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from hooks import checks
from hooks.base import Every, HookContext
from hooks.scalars import ScalarsHook


class WandbHook(ScalarsHook):
    """Logs the loss and the metrics of training to a run of Weights & Biases, in the chief process.

        run = wandb.init(project="digits")
        estimator.train(input_fn, hooks=[est.hooks.WandbHook(run, est.hooks.EverySteps(100))])
        run.log({f"eval/{name}": value for name, value in estimator.evaluate(eval_fn).items()})

    Curves are drawn over `global_step`, so that a resumed run goes on where it stopped. Needs the
    extra `wandb`.

    Args:
      run: what `wandb.init` returned; whoever made it finishes it. Other processes than the
        chief may pass None.
      every: when scalars are due, see `ScalarsHook`.
      params: hyperparameters for the configuration of the run.
    """

    def __init__(self, run: Any, every: Every, params: Mapping[str, Any] | None = None):
        super().__init__(checks.every(every))
        self._run = run
        self._params = params

    def begin(self, context: HookContext) -> None:
        checks.training(self, context)
        super().begin(context)
        if not context.is_chief:
            return
        if not hasattr(self._run, "log"):
            raise TypeError(
                f"run must be what wandb.init(...) returned, got {type(self._run).__name__}."
            )
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")
        if self._params:
            self._run.config.update(dict(self._params), allow_val_change=True)

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "global_step": step})


class MlflowHook(ScalarsHook):
    """Logs the loss and the metrics of training to a run of MLflow, in the chief process.

        with mlflow.start_run() as run:
            hook = est.hooks.MlflowHook(run.info.run_id, est.hooks.EverySteps(100))
            estimator.train(input_fn, hooks=[hook])
            mlflow.log_metrics(estimator.evaluate(eval_fn))

    Needs the extra `mlflow`.

    Args:
      run_id: of the run; whoever started it ends it.
      every: when scalars are due, see `ScalarsHook`.
      params: hyperparameters of the run. MLflow refuses to change those that it has.
      client: the `mlflow.MlflowClient` to use; one for MLflow's own tracking URI if None.
      clock: returns seconds since 1970.
    """

    def __init__(
        self,
        run_id: str,
        every: Every,
        params: Mapping[str, Any] | None = None,
        *,
        client: Any = None,
        clock: Callable[[], float] = time.time,
    ):
        super().__init__(checks.every(every))
        if not isinstance(run_id, str):
            raise TypeError(
                f"run_id must be a text, such as run.info.run_id, got {type(run_id).__name__}."
            )
        self._run_id = run_id
        self._params = params
        self._client = client
        self._clock = clock

    def begin(self, context: HookContext) -> None:
        checks.training(self, context)
        super().begin(context)
        if not context.is_chief:
            return
        if self._client is None:
            from mlflow import MlflowClient

            self._client = MlflowClient()
        for name, value in (self._params or {}).items():
            self._client.log_param(self._run_id, name, value)

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(self._clock() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
