"""Small models, data and hooks for tests. Nothing here is random unless a test asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import estimator as est

HIDDEN = 8


def numbered(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns `count` examples: features `id` (0, 1, ...) and `x` (4 numbers), and labels."""
    x = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    labels = x @ np.array([1.0, -2.0, 0.5, 0.0], np.float32) + 0.5
    return {"id": np.arange(count, dtype=np.int32), "x": x}, labels


def dataset(count: int) -> est.input_pipeline.Dataset:
    """Returns a Dataset of `numbered(count)`."""
    return est.input_pipeline.Dataset.from_arrays(numbered(count))


def batches(count: int, batch_size: int) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yields `numbered(count)` in batches, the last one possibly smaller."""
    features, labels = numbered(count)
    for start in range(0, count, batch_size):
        rows = slice(start, start + batch_size)
        yield {name: values[rows] for name, values in features.items()}, labels[rows]


def ramp(key: Any, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Initializes a kernel with equally spaced values, whatever the key."""
    return jnp.linspace(-0.5, 0.5, int(np.prod(shape)), dtype=dtype).reshape(shape)


def mlp(features: Any, labels: Any, mode: str, params: Any, context: Any) -> est.EstimatorSpec:
    """A model_fn with two dense layers, made inline.

    `params` may hold `optimizer`, `dropout` (a rate), `scalar_loss` and `host_call` (a function
    of `id`, `loss` and, if it likes, `step`).
    """
    hidden = nn.relu(nn.Dense(HIDDEN, kernel_init=ramp)(features["x"]))
    if "dropout" in params:
        train = mode == est.ModeKeys.TRAIN
        hidden = nn.Dropout(params["dropout"], deterministic=not train)(hidden)
    outputs = nn.Dense(1, kernel_init=ramp)(hidden)[:, 0]
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"output": outputs})
    loss = (outputs - labels) ** 2
    host_call = params.get("host_call")
    return est.EstimatorSpec(
        mode,
        loss=loss.mean() if params.get("scalar_loss") else loss,
        optimizer=params.get("optimizer", optax.sgd(0.05)),
        host_call=host_call and (host_call, {"id": features["id"], "loss": loss.mean()}),
    )


def mlp_by_hand(
    data: Iterable[tuple[dict[str, np.ndarray], np.ndarray]], optimizer: Any
) -> dict[str, np.ndarray]:
    """Trains the model of `mlp`, without dropout, in a plain optax loop; returns its parameters."""
    params = {
        "Dense_0": {"kernel": ramp(None, (4, HIDDEN)), "bias": jnp.zeros(HIDDEN)},
        "Dense_1": {"kernel": ramp(None, (HIDDEN, 1)), "bias": jnp.zeros(1)},
    }

    def loss_fn(params: Any, x: Any, labels: Any) -> Any:
        hidden = jax.nn.relu(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
        outputs = hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
        return jnp.mean((outputs[:, 0] - labels) ** 2)

    @jax.jit
    def update(params: Any, opt_state: Any, x: Any, labels: Any) -> Any:
        grads = jax.grad(loss_fn)(params, x, labels)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    opt_state = optimizer.init(params)
    for features, labels in data:
        params, opt_state = update(params, opt_state, features["x"], labels)
    return named(params)


def config(*, devices: int | est.DeviceConfig = 1, **settings: Any) -> est.RunConfig:
    """Returns a RunConfig on the first `devices` devices, or as it says, that writes no summaries
    or log lines and always runs device loops, unless `settings` ask for something else."""
    quiet = {
        "save_summary_steps": None,
        "log_step_count_steps": None,
        "loop_shape": "device_loop",
    }
    if not isinstance(devices, est.DeviceConfig):
        devices = est.DeviceConfig(devices=jax.devices()[:devices])
    return est.RunConfig(devices=devices, **{**quiet, **settings})


def named(tree: Any) -> dict[str, np.ndarray]:
    """Returns the leaves of `tree` as numpy copies under names such as `Dense_0/bias`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.array(_without_key_type(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _without_key_type(leaf: Any) -> Any:
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def final_state(estimator: est.Estimator, input_fn: Callable[..., Any], **arguments: Any) -> Any:
    """Trains, and returns the leaves of the last train state by name, in numpy."""
    final = est.hooks.FinalOpsHook(named)
    hooks = [*arguments.pop("hooks", ()), final]
    estimator.train(input_fn, hooks=hooks, **arguments)
    return final.result


def saved_variables(estimator: est.Estimator) -> dict[str, np.ndarray]:
    """Returns the variables of the newest checkpoint by name."""
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def saved_steps(estimator: est.Estimator) -> list[int]:
    """Returns the steps of the whole checkpoints in model_dir, in order."""
    folder = Path(estimator.model_dir) / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def latest_step(estimator: est.Estimator) -> int | None:
    """Returns the step of the newest checkpoint."""
    path = estimator.latest_checkpoint()
    return None if path is None else int(Path(path).name)


def assert_equal(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Checks that two sets of named arrays are the same, bit for bit."""
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


def assert_close(
    actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float
) -> None:
    """Checks that two sets of named arrays agree to `tolerance`, absolutely and relatively."""
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(
            actual[name], values, rtol=tolerance, atol=tolerance, err_msg=name
        )


def parameters(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the parameters in what `final_state` gives, under their names in the model."""
    return {name[7:]: leaf for name, leaf in state.items() if name.startswith("params/")}


class LoopLog(est.hooks.Hook):
    """Remembers how many steps each loop had, and what was shown of it."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.losses: list[float] = []
        self.examples = 0

    def after_loop(self, view: est.hooks.LoopView) -> None:
        self.lengths.append(view.step - view.before)
        self.losses.extend(view.losses.tolist())
        self.examples += view.examples


class IdLog:
    """A host_call that remembers which examples each step had."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.ids: list[list[int]] = []

    def __call__(self, id: np.ndarray, loss: np.ndarray, step: int) -> None:
        self.steps.append(step)
        self.ids.append(id.tolist())

    @property
    def all_ids(self) -> list[int]:
        """The examples of all steps in one list."""
        return [example for step in self.ids for example in step]


def threads_left(before: set[threading.Thread], wait_secs: float = 5.0) -> list[str]:
    """Returns the names of the threads that are not in `before` and do not end by themselves, as
    a few of orbax's and tensorboardX's do soon after the run that made them."""
    new = [thread for thread in threading.enumerate() if thread not in before]
    for thread in new:
        thread.join(wait_secs)  # only a test that fails waits for so long
    return [thread.name for thread in new if thread.is_alive()]
