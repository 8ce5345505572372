"""A script as a user would write it: trains, evaluates, predicts, and says what came out.

`python script.py REQUEST`, REQUEST a Request in JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax

import estimator as est
from tests.faults.faults import NO_FAULT, Fault, Injector

EXAMPLES, BATCH_SIZE, STEPS, SAVE_STEPS, LOOP_STEPS = 24, 4, 30, 8, 5
GRACE_SECS = 60


@dataclasses.dataclass(frozen=True)
class Request:
    """What to run.

    Attributes:
      work_dir: gets `model/`, `log` (steps and examples as host_call heard of them) and, from a run
        that ends well, `result.json` and `file_events` (how often it used files in `model/`).
      cache_dir: of compiled programs.
      fault: what happens meanwhile.
      file_bytes: no file may grow larger, as on a disk that is full; 0 for no limit.
      user: to become, or 0.
      schedule: "apart" trains and then evaluates, "together" calls train_and_evaluate. What comes
        out is the same.
    """

    work_dir: str
    cache_dir: str
    fault: Fault = NO_FAULT
    file_bytes: int = 0
    user: int = 0
    schedule: str = "apart"

    @classmethod
    def from_json(cls, text: str) -> Request:
        fields = json.loads(text)
        return cls(**{**fields, "fault": Fault(**fields["fault"])})

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class Seen(nn.Module):
    """Counts in the model's state how often each example was trained on."""

    @nn.compact
    def __call__(self, ids: Any) -> None:
        count = self.variable("seen", "count", jnp.zeros, EXAMPLES, jnp.int32)
        if not self.is_initializing():
            count.value = count.value.at[ids].add(1)


class PointHook(est.hooks.Hook):
    """Comes by a point in each of its methods."""

    def __init__(self, injector: Injector):
        self._point = injector.point

    def begin(self, context: Any) -> None:
        self._point("hook.begin")

    def before_loop(self, step: int) -> None:
        self._point("hook.before_loop")

    def after_loop(self, view: Any) -> None:
        self._point("hook.after_loop")

    def before_save(self, view: Any) -> None:
        self._point("hook.before_save")

    def after_save(self, step: int, path: Path) -> None:
        self._point("hook.after_save")

    def end(self, view: Any) -> None:
        self._point("hook.end")


def run(request: Request) -> None:
    """Trains to `STEPS`, from wherever an earlier run has come to."""
    work_dir, model_dir = Path(request.work_dir), str(Path(request.work_dir) / "model")
    if request.user:
        os.setuid(request.user)
    if request.file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request.file_bytes, request.file_bytes))
    injector = Injector(request.fault, model_dir)
    log = os.open(work_dir / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    injector.point("start")

    def host_call(ids: np.ndarray, step: int) -> None:
        injector.point("host_call")
        # One write, so that a kill leaves a whole line or none.
        os.write(log, f"{step} {' '.join(map(str, ids))}\n".encode())

    def metric_fn(loss: np.ndarray) -> dict[str, Any]:
        injector.point("metric_fn")
        return {"worst": loss.max()}

    def model_fn(features: Any, labels: Any, mode: str) -> est.EstimatorSpec:
        injector.point("model_fn")
        hidden = nn.relu(nn.Dense(8)(features["x"]))
        hidden = nn.Dropout(0.2, deterministic=mode != est.ModeKeys.TRAIN)(hidden)
        outputs = nn.Dense(1)(hidden)[:, 0]
        if mode == est.ModeKeys.PREDICT:
            return est.EstimatorSpec(mode, predictions=outputs)
        loss = (outputs - labels) ** 2
        if mode == est.ModeKeys.TRAIN:
            Seen()(features["id"])
        return est.EstimatorSpec(
            mode,
            loss=loss,
            optimizer=optax.adam(0.05),
            host_call=(host_call, {"ids": features["id"]}),
            eval_metrics=(metric_fn, {"loss": loss}),
        )

    x = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype(np.float32)
    features, labels = {"id": np.arange(EXAMPLES, dtype=np.int32), "x": x}, x.sum(-1)

    def prepared(example: Any) -> Any:
        injector.point("map")
        return example

    def input_fn(mode: str) -> Any:
        injector.point("input_fn")
        data = est.input_pipeline.Dataset.from_arrays((features, labels)).map(prepared)
        return data.shuffle(seed=1).repeat() if mode == est.ModeKeys.TRAIN else data

    config = est.RunConfig(
        iterations_per_loop=LOOP_STEPS,
        save_checkpoints_steps=SAVE_STEPS,
        keep_checkpoint_max=2,
        loop_shape="device_loop",
        compilation_cache_dir=request.cache_dir,
        preemption_grace_secs=GRACE_SECS,
    )
    model = est.Estimator(
        model_fn,
        model_dir,
        config,
        train_batch_size=BATCH_SIZE,
        eval_batch_size=BATCH_SIZE,
        predict_batch_size=BATCH_SIZE,
    )
    hooks = [PointHook(injector)]
    if request.schedule == "together":
        metrics, _ = est.train_and_evaluate(
            model,
            est.TrainSpec(input_fn, max_steps=STEPS, hooks=hooks),
            est.EvalSpec(input_fn, steps=None, throttle_secs=0),
        )
    else:
        model.train(input_fn, hooks=hooks, max_steps=STEPS)
        injector.point("trained")
        metrics = model.evaluate(input_fn)
    injector.point("evaluated")
    outputs = []
    for output in model.predict(input_fn):
        injector.point("predict")
        outputs.append(float(output))
    variables = {name: model.get_variable_value(name) for name in model.get_variable_names()}
    digest = hashlib.sha256(b"".join(variables[name].tobytes() for name in sorted(variables)))
    result = {
        "variables": digest.hexdigest(),
        "seen": variables["seen/Seen_0/count"].tolist(),
        "metrics": metrics,
        "outputs": outputs,
    }
    (work_dir / "result.json").write_text(json.dumps(result))
    (work_dir / "file_events").write_text(str(injector.file_events))


if __name__ == "__main__":
    run(Request.from_json(sys.argv[1]))
