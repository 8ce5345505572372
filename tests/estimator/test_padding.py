"""Padding reaches nothing that training computes, whatever the batch size."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est

ROWS = 11
X = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)


def estimator(model_fn, model_dir, batch_size):
    return est.Estimator(model_fn, model_dir, train_batch_size=batch_size)


@pytest.mark.parametrize("per_example_loss", [True, False])
@pytest.mark.parametrize("batch_size", [16, 32])
def test_batch_statistics_are_those_of_the_real_rows(tmp_path, batch_size, per_example_loss):
    def model_fn(features, mode):
        x = nn.BatchNorm(use_running_average=False, momentum=0.0)(features)
        loss = nn.Dense(1)(x)[:, 0] ** 2
        return est.EstimatorSpec(
            mode, loss=loss if per_example_loss else loss.mean(), optimizer=optax.sgd(0.1)
        )

    model = estimator(model_fn, tmp_path, batch_size).train(lambda: X)

    mean = model.get_variable_value("batch_stats/BatchNorm_0/mean")
    np.testing.assert_allclose(mean, X.mean(0), rtol=1e-6)


def test_a_loss_that_couples_examples_is_free_of_padding_in_evaluation_if_it_uses_the_mask(
    tmp_path,
):
    def model_fn(features, mode, context):
        x = nn.Dense(1)(features)[:, 0]
        weights = jnp.ones_like(x) if context.mask is None else context.mask.astype(x.dtype)
        mean = (x * weights).sum() / weights.sum()
        return est.EstimatorSpec(mode, loss=(x - mean) ** 2, optimizer=optax.sgd(0.0))

    def new(batch_size):
        return est.Estimator(model_fn, tmp_path, train_batch_size=8, eval_batch_size=batch_size)

    new(16).train(lambda: X, max_steps=1)
    whole = X @ new(16).get_variable_value("params/Dense_0/kernel")[:, 0]
    expected = ((whole - whole.mean()) ** 2).mean()
    assert new(16).evaluate(lambda: X)["loss"] == pytest.approx(expected, rel=1e-5)


def test_host_call_gets_the_real_rows_only(tmp_path):
    seen = []

    def model_fn(features, mode):
        loss = nn.Dense(1)(features)[:, 0] ** 2
        host_call = (lambda x: seen.append(x[:, 0].tolist()), [features])
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.1), host_call=host_call)

    estimator(model_fn, tmp_path, 8).train(lambda: X)

    assert seen == [X[:8, 0].tolist(), X[8:, 0].tolist()]
