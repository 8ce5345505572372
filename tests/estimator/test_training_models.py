"""The ways to hold a model's variables, each trained, saved, resumed and checked by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import estimator as est
from tests import fakes
from tests.fakes import HIDDEN, config, dataset, final_state, numbered, ramp


def regression(features, labels, mode, model):
    outputs = model(features["x"])[:, 0]
    return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.sgd(0.05))


class LinenMlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = nn.relu(nn.Dense(HIDDEN, kernel_init=ramp)(x))
        return nn.Dense(1, kernel_init=ramp)(hidden)


class NnxMlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.Dense_0 = nnx.Linear(4, HIDDEN, kernel_init=ramp, rngs=rngs)
        self.Dense_1 = nnx.Linear(HIDDEN, 1, kernel_init=ramp, rngs=rngs)

    def __call__(self, x):
        return self.Dense_1(jax.nn.relu(self.Dense_0(x)))


def functional_init(rng: Any, features: Any) -> Any:
    return {
        "Dense_0": {"kernel": ramp(rng, (4, HIDDEN)), "bias": jnp.zeros(HIDDEN)},
        "Dense_1": {"kernel": ramp(rng, (HIDDEN, 1)), "bias": jnp.zeros(1)},
    }


def functional_apply(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    return hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]


MODELS: dict[str, Callable[[], Any]] = {
    "linen module": LinenMlp,
    "nnx class": lambda: NnxMlp,
    "nnx builder": lambda: lambda rngs: NnxMlp(rngs),
    "functional": lambda: est.Functional(functional_init, functional_apply),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_trains_as_by_hand_and_resumes(tmp_path, name):
    def make():
        return est.Estimator(
            regression, tmp_path, config(devices=2), train_batch_size=4, model=MODELS[name]()
        )

    make().train(lambda: numbered(40), steps=4)
    state = final_state(make(), lambda: numbered(40))
    expected = fakes.mlp_by_hand(fakes.batches(40, 4), optax.sgd(0.05))
    fakes.assert_close(fakes.parameters(state), expected, 1e-6)
    assert int(state["step"]) == 10


def test_a_functional_takes_its_functions_by_their_documented_names():
    model = est.Functional(init=functional_init, apply=functional_apply)  # pyright: ignore
    assert isinstance(model, est.Functional)


def normalized_inline(features, labels, mode):
    x = nn.BatchNorm(use_running_average=mode != est.ModeKeys.TRAIN, momentum=0.5)(features["x"])
    outputs = nn.Dense(1, kernel_init=ramp)(x)[:, 0]
    return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.sgd(0.0))


class NnxNormalized(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.norm = nnx.BatchNorm(4, momentum=0.5, rngs=rngs)
        self.layers = nnx.Sequential(nnx.Linear(4, HIDDEN, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))
        self.last = nnx.Linear(HIDDEN, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(self.layers(self.norm(x)))


@pytest.mark.parametrize(
    ("kind", "mean", "variance"),
    [
        (
            "inline",
            "model_state/batch_stats/BatchNorm_0/mean",
            "model_state/batch_stats/BatchNorm_0/var",
        ),
        ("nnx", "model_state/state/norm/mean", "model_state/state/norm/var"),
    ],
)
@pytest.mark.parametrize("parts", [(6,), (2, 4)], ids=["at once", "resumed"])
def test_batch_statistics_follow_the_batches(tmp_path, kind, mean, variance, parts):
    def make():
        if kind == "inline":
            return est.Estimator(normalized_inline, tmp_path, config(), train_batch_size=4)
        return est.Estimator(
            regression, tmp_path, config(), train_batch_size=4, model=NnxNormalized
        )

    for steps in parts:
        state = final_state(make(), lambda: numbered(40), steps=steps)
    means, variances = np.zeros(4), np.ones(4)
    for features, _ in list(fakes.batches(40, 4))[:6]:
        means = 0.5 * means + 0.5 * features["x"].mean(0)
        variances = 0.5 * variances + 0.5 * features["x"].var(0)
    np.testing.assert_allclose(state[mean], means, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state[variance], variances, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["nnx", "inline"])
def test_models_with_state_and_dropout_give_the_same_bits_in_any_grouping(tmp_path, kind):
    def inline(features, labels, mode):
        train = mode == est.ModeKeys.TRAIN
        x = nn.BatchNorm(use_running_average=not train)(features["x"])
        x = nn.Dropout(0.5, deterministic=not train)(nn.Dense(HIDDEN)(x))
        outputs = nn.Dense(1)(x)[:, 0]
        return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.adam(0.01))

    def run(name: str, parts: tuple[int, ...], iterations: int) -> Any:
        for steps in parts:
            estimator = est.Estimator(
                inline if kind == "inline" else regression,
                tmp_path / name,
                config(iterations_per_loop=iterations),
                train_batch_size=4,
                model=None if kind == "inline" else NnxNormalized,
            )
            state = final_state(estimator, lambda: dataset(20).repeat(), steps=steps)
        return state

    expected = run("one by one", (12,), 1)
    fakes.assert_equal(run("fives", (12,), 5), expected)
    fakes.assert_equal(run("parts", (5, 7), 5), expected)


def test_parameters_in_half_precision_keep_their_dtype(tmp_path):
    def model_fn(features, labels, mode):
        dense = nn.Dense(1, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
        outputs = dense(features["x"])[:, 0]
        loss = (outputs - labels.astype(jnp.bfloat16)) ** 2
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.adam(0.01))

    estimator = est.Estimator(model_fn, tmp_path, config(), train_batch_size=4)
    estimator.train(lambda: numbered(20), steps=2)
    state = final_state(estimator, lambda: numbered(20), steps=2)
    assert state["params/Dense_0/kernel"].dtype == jnp.bfloat16
    assert state["opt_state/0/mu/Dense_0/kernel"].dtype == jnp.bfloat16
    assert int(state["step"]) == 4


def test_features_may_be_a_bare_array_and_labels_may_be_missing(tmp_path):
    def model_fn(features, mode):
        return est.EstimatorSpec(
            mode, loss=nn.Dense(1)(features)[:, 0] ** 2, optimizer=optax.sgd(0.1)
        )

    estimator = est.Estimator(model_fn, Path(tmp_path), config(), train_batch_size=2)
    estimator.train(lambda: np.ones((6, 3), np.float32))
    assert fakes.latest_step(estimator) == 3


def test_an_optimizer_that_looks_at_the_loss_is_given_it(tmp_path):
    def model_fn(features, labels, mode):
        loss = (nn.Dense(1, kernel_init=ramp)(features["x"])[:, 0] - labels) ** 2
        plateau = optax.contrib.reduce_on_plateau()
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.chain(optax.sgd(0.01), plateau))

    losses: list[float] = []
    hook = est.hooks.LambdaHook(after_loop=lambda view: losses.extend(view.losses.tolist()))
    estimator = est.Estimator(model_fn, tmp_path, train_batch_size=8)
    state = final_state(estimator, lambda: dataset(32).batch(8), hooks=[hook])

    assert len(losses) == 4
    assert state["opt_state/1/best_value"] == pytest.approx(min(losses), rel=1e-3)


def functional_regression(model_dir: Path, **extra: Any) -> est.Estimator:
    """Returns an Estimator of `scale * (x @ w)` with `extra` beside `w`; without a scale, 1."""
    model = est.Functional(
        lambda rng, features: {"w": jnp.ones(4), **extra},
        lambda params, x: (params.get("scale", 1.0) * (x @ params["w"]))[:, None],
    )
    return est.Estimator(regression, model_dir, train_batch_size=8, model=model)


@pytest.mark.parametrize("extra", [jnp.int32(3), jnp.tanh], ids=["integer", "function"])
def test_a_parameter_without_a_gradient_is_refused_by_name(tmp_path, extra):
    with pytest.raises(TypeError, match="count"):
        functional_regression(tmp_path, count=extra).train(lambda: numbered(8))


def test_a_python_float_is_a_parameter(tmp_path):
    estimator = functional_regression(tmp_path, scale=3.0).train(lambda: numbered(8))
    assert estimator.get_variable_value("params/scale") != 3
