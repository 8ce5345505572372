"""A model that counts its steps, so that a test knows what every evaluation must give."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import estimator as est
from tests.fakes import config


def model_fn(features: Any, labels: Any, mode: str, params: Any, model: Any) -> est.EstimatorSpec:
    """After n steps the only weight is n, and so is the loss of an evaluation.

    `params["scores"]` may hold a value of the metric `score` for each ten steps.
    """
    weight = model(features)
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"weight": weight})
    scores = jnp.asarray(params.get("scores", [0.0]), jnp.float32)
    return est.EstimatorSpec(
        mode,
        loss=-weight if mode == est.ModeKeys.TRAIN else weight,
        optimizer=optax.sgd(1.0),
        metrics={"score": scores[jnp.clip(weight.astype(int) // 10, 0, len(scores) - 1)]},
    )


def counting(model_dir: Any, params: Any = None, **settings: Any) -> est.Estimator:
    """Returns an Estimator of `model_fn` that saves every 10 steps and keeps all checkpoints."""
    usual = {"iterations_per_loop": 5, "save_checkpoints_steps": 10, "keep_checkpoint_max": None}
    return est.Estimator(
        model_fn,
        model_dir,
        config(**{**usual, **settings}),
        params=params,
        model=est.Functional(
            lambda rng, features: jnp.zeros(1), lambda weight, x: (weight * x)[:, 0]
        ),
        train_batch_size=4,
        eval_batch_size=8,
        predict_batch_size=8,
    )


def steps_of_input(steps: int) -> np.ndarray:
    """Returns input for so many steps of training."""
    return np.ones((4 * steps, 1), np.float32)


def endless() -> est.input_pipeline.Dataset:
    """An input_fn that lasts."""
    return est.input_pipeline.Dataset.from_arrays(steps_of_input(2)).repeat()


def once() -> np.ndarray:
    """An input_fn of one batch of evaluation."""
    return np.ones((8, 1), np.float32)


def evaluated(model: est.Estimator, name: str | None = None) -> dict[int, float]:
    """Returns the losses on record by global step, in the order in which they were written."""
    return {
        result.global_step: result.values["loss"]
        for result in est.hooks.read_eval_results(model.eval_dir(name))
    }
