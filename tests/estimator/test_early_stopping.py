"""Training that stops by what its evaluations wrote down."""

from __future__ import annotations

import dataclasses

import pytest

import estimator as est
from tests.fakes import config, latest_step, mlp, numbered, saved_steps

CURVE = {10: 1.0, 20: 0.90, 30: 0.95, 40: 0.96, 50: 0.97}


def make(folder):
    """Returns an Estimator whose evaluations of the metric `scripted` follow CURVE."""

    def model_fn(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, params, context)
        if mode != est.ModeKeys.EVAL:
            return spec
        scripted = {"step": context.step + 0 * features["id"]}
        return dataclasses.replace(
            spec, eval_metrics=(lambda step: {"scripted": CURVE[int(step[0])]}, scripted)
        )

    return est.Estimator(
        model_fn,
        folder,
        config(iterations_per_loop=4, save_checkpoints_steps=10),
        train_batch_size=4,
        eval_batch_size=4,
    )


def endless():
    return est.input_pipeline.Dataset.from_arrays(numbered(8)).repeat()


def train(folder, *, killed_at=None, metric="scripted"):
    """Trains with an evaluation behind every checkpoint; dies behind the one at `killed_at`."""
    estimator = make(folder)

    def evaluate(step, path):
        estimator.evaluate(lambda: numbered(4), checkpoint_path=path)
        if step == killed_at:
            raise KeyboardInterrupt

    estimator.train(
        endless,
        max_steps=1000,
        hooks=[
            est.hooks.EarlyStoppingHook(metric, patience_steps=20),
            est.hooks.LambdaHook(after_save=evaluate),
        ],
    )
    return estimator


def test_it_stops_at_the_evaluation_that_decides(tmp_path, caplog):
    caplog.set_level("INFO")
    assert latest_step(train(tmp_path)) == 40
    assert "Stop at step 40: EarlyStoppingHook: scripted is best at step 20" in caplog.text


def test_a_run_that_was_killed_and_resumed_stops_at_the_same_step(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, killed_at=30)
    assert latest_step(make(tmp_path)) == 30

    assert latest_step(train(tmp_path)) == 40


def test_a_run_that_was_killed_behind_the_evaluation_that_decides_makes_no_further_step(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, killed_at=40)

    assert saved_steps(train(tmp_path)) == [10, 20, 30, 40]


def test_evaluations_between_calls_of_train_count_too(tmp_path):
    estimator = make(tmp_path)
    hook = est.hooks.EarlyStoppingHook("scripted", patience_steps=20)
    for _ in range(6):
        estimator.train(endless, steps=10, hooks=[hook])
        estimator.evaluate(lambda: numbered(4))
    assert latest_step(estimator) == 40


def test_a_metric_that_is_not_there_ends_the_run_with_the_names_that_are(tmp_path):
    with pytest.raises(ValueError, match=r"'scriptd'.*step 10 .*\['loss', 'scripted'\]"):
        train(tmp_path, metric="scriptd")
