"""A hook stops train, evaluate and predict before a loop, and what was computed is delivered."""

from __future__ import annotations

import flax.linen as nn
import numpy as np
import optax
import pytest

import estimator as est

X = np.arange(80, dtype=np.float32).reshape(80, 1)


class StopBefore(est.hooks.Hook):
    """Stops before the loop that starts at `step` or later."""

    def __init__(self, step):
        self.step = step

    def before_loop(self, step):
        return "enough" if step >= self.step else None


def model_fn(features, labels, mode):
    predictions = nn.Dense(1)(features)[:, 0]
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"x": features[:, 0], "y": predictions})
    return est.EstimatorSpec(mode, loss=(predictions - labels) ** 2, optimizer=optax.sgd(1e-5))


@pytest.fixture
def model(tmp_path):
    return est.Estimator(
        model_fn,
        tmp_path,
        est.RunConfig(iterations_per_loop=2),
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
    )


@pytest.mark.parametrize("stop", [0, 4])
def test_training_stops_with_a_checkpoint_of_the_steps_before(model, stop):
    model.train(lambda: (X, X[:, 0]), hooks=[StopBefore(stop)])
    assert model.latest_checkpoint().endswith(f"/{stop}")


def test_an_evaluation_is_over_the_batches_before(model):
    model.train(lambda: (X, X[:, 0]), steps=1)
    stopped = model.evaluate(lambda: (X, X[:, 0]), hooks=[StopBefore(4)])
    assert stopped == model.evaluate(lambda: (X, X[:, 0]), steps=4)


@pytest.mark.parametrize("stop", [0, 4])
def test_predictions_end_with_the_batches_before(model, stop):
    model.train(lambda: (X, X[:, 0]), steps=1)
    seen = [row["x"] for row in model.predict(lambda: X, hooks=[StopBefore(stop)])]
    assert seen == list(range(8 * stop))
