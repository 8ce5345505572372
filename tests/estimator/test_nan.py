"""A loss that is no number ends the run and never gets into a checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from tests import fakes
from tests.fakes import config, dataset, mlp


def nan_from_step_7(features, labels, mode, params, context):
    spec = mlp(features, labels, mode, params, context)
    loss = jnp.where(context.step + 1 >= 7, jnp.nan, spec.loss)
    return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.05))


def make(model_dir: Path, model_fn: Any = nan_from_step_7, **settings: Any) -> est.Estimator:
    settings = {"iterations_per_loop": 5, "save_checkpoints_steps": 5, **settings}
    return est.Estimator(model_fn, model_dir, config(**settings), train_batch_size=2)


def test_a_nan_raises_and_names_the_step_and_the_last_good_checkpoint_stays(
    tmp_path, no_new_threads
):
    estimator = make(tmp_path)
    with pytest.raises(est.NanLossError, match="step 7") as caught:
        estimator.train(lambda: dataset(20).repeat(), max_steps=100)
    assert caught.value.step == 7
    assert fakes.saved_steps(estimator) == [5]
    assert all(np.isfinite(value).all() for value in fakes.saved_variables(estimator).values())


@pytest.mark.parametrize("iterations", [1, 5, 100])
def test_a_users_hook_that_does_not_fail_replaces_the_built_in_one(tmp_path, iterations, caplog):
    estimator, log = make(tmp_path, iterations_per_loop=iterations), fakes.LoopLog()
    hooks = [log, est.hooks.NanHook(fail_on_nan=False)]
    with caplog.at_level(logging.WARNING):
        estimator.train(lambda: dataset(20).repeat(), hooks=hooks, max_steps=100)
    assert sum(log.lengths) < 100
    assert "step 7" in caplog.text
    assert fakes.saved_steps(estimator) == [5]


def test_a_nan_in_the_very_last_loop_of_a_run_raises(tmp_path):
    estimator = make(tmp_path, save_checkpoints_steps=100)
    with pytest.raises(est.NanLossError, match="step 7"):
        estimator.train(lambda: dataset(20).repeat(), max_steps=8)
    assert estimator.latest_checkpoint() is None


def test_parameters_that_became_nan_under_a_good_loss_are_not_saved_either(tmp_path):
    """The square root of zero is a fine loss with a gradient that is no number."""

    def model_fn(features, labels, mode, context):
        weight = nn.Dense(1, use_bias=False, kernel_init=nn.initializers.ones)(jnp.ones((2, 1)))[
            :, 0
        ]
        # From step 10 on the argument is zero.
        loss = jnp.sqrt(jnp.where(context.step + 1 >= 10, weight * 0.0, weight**2 + 1.0))
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.01))

    estimator = make(tmp_path, model_fn)
    with pytest.raises(est.NanLossError, match="params/Dense_0/kernel is no longer a number"):
        estimator.train(lambda: dataset(20).repeat(), max_steps=100)
    assert fakes.latest_step(estimator) == 5
    assert all(np.isfinite(value).all() for value in fakes.saved_variables(estimator).values())


class Remembers(nn.Module):
    """Keeps a running value that training never reads: its loss cannot show what became of it."""

    value: float

    @nn.compact
    def __call__(self, x, step):
        memory = self.variable("statistics", "memory", jnp.zeros, ())
        if not self.is_initializing():
            memory.value = jnp.where(step >= 7, self.value, memory.value)
        return nn.Dense(1)(x)[:, 0]


def remembering(value):
    def model_fn(features, labels, mode, context):
        logits = Remembers(value)(features["x"], context.step)
        return est.EstimatorSpec(
            mode, loss=jnp.mean((logits - labels) ** 2), optimizer=optax.sgd(0.01)
        )

    return model_fn


def test_another_variable_that_became_nan_under_a_good_loss_is_not_saved_either(tmp_path):
    estimator = make(tmp_path, remembering(jnp.nan))
    with pytest.raises(
        est.NanLossError, match="statistics/Remembers_0/memory is no longer"
    ) as caught:
        estimator.train(lambda: dataset(20).repeat(), max_steps=100)
    assert caught.value.variable == "statistics/Remembers_0/memory"
    assert np.isfinite(caught.value.loss)
    assert fakes.latest_step(estimator) == 5


def test_a_variable_that_is_infinite_by_intention_is_saved(tmp_path):
    estimator = make(tmp_path, remembering(jnp.inf))
    estimator.train(lambda: dataset(20).repeat(), max_steps=10)
    assert fakes.latest_step(estimator) == 10


def test_an_optimizer_that_keeps_a_nan_is_not_saved(tmp_path):
    def poison(updates, state, params=None):
        count = state + 1
        return updates, jnp.where(count >= 7, jnp.nan, count)

    memory = optax.GradientTransformation(lambda params: jnp.zeros(()), poison)

    def model_fn(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, params, context)
        optimizer = optax.chain(memory, optax.sgd(0.05))
        return est.EstimatorSpec(mode, loss=spec.loss, optimizer=optimizer)

    estimator = make(tmp_path, model_fn)
    with pytest.raises(est.NanLossError, match="opt_state/0 is no longer a number"):
        estimator.train(lambda: dataset(20).repeat(), max_steps=100)
    assert fakes.latest_step(estimator) == 5


def test_an_infinite_loss_raises_too(tmp_path):
    def model_fn(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, params, context)
        loss = jnp.where(context.step + 1 == 3, jnp.inf, spec.loss)
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.05))

    with pytest.raises(est.NanLossError, match="inf at step 3"):
        make(tmp_path, model_fn).train(lambda: dataset(20).repeat(), max_steps=4)
