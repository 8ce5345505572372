"""Which checkpoints stay: the newest, one every few hours, and the best."""

from __future__ import annotations

import datetime
import math
from typing import NamedTuple

import numpy as np
import optax
import pytest

import estimator as est
from estimator.checkpoints import as_path, preservation_policy
from hooks import append_eval_result, eval_dir
from tests import fakes

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Info(NamedTuple):
    """What orbax's policies are shown of a checkpoint."""

    step: int
    time: datetime.datetime
    metrics: None = None


def kept(model_dir, steps, *, newest, every_n_hours=None, best=None, hours_apart=1.0):
    """Saves one step after another as orbax does, and returns which stay to the end."""
    policy = preservation_policy(
        as_path(model_dir), newest=newest, every_n_hours=every_n_hours, best=best
    )
    infos: list[Info] = []
    for number, step in enumerate(steps):
        infos.append(Info(step, START + number * datetime.timedelta(hours=hours_apart)))
        stay = policy.should_preserve(infos, context=None)
        infos = [info for info, stays in zip(infos, stay, strict=True) if stays]
    return [info.step for info in infos]


def evaluated(model_dir, values, name=None, hours=100.0):
    """Notes evaluations: step -> value of "score"."""
    for step, value in values.items():
        wall_time = START.timestamp() + hours * 3600
        append_eval_result(
            eval_dir(model_dir, name), step, {"score": value}, clock=lambda now=wall_time: now
        )


def test_the_newest_stay(tmp_path):
    assert kept(tmp_path, range(1, 9), newest=3) == [6, 7, 8]


def test_all_stay_where_there_is_no_number(tmp_path):
    assert kept(tmp_path, range(1, 9), newest=None) == list(range(1, 9))


def test_one_every_few_hours_stays_besides(tmp_path):
    assert kept(tmp_path, range(10), newest=1, every_n_hours=4) == [0, 4, 8, 9]
    assert kept(tmp_path, range(10), newest=2, every_n_hours=0.5) == list(range(10))


SCORES = {1: 0.1, 2: 0.9, 3: 0.2, 4: 0.8, 5: 0.3, 6: 0.4}


@pytest.mark.parametrize(("mode", "best"), [("max", [2, 4]), ("min", [1, 3])])
def test_the_best_stay_besides_the_newest(tmp_path, mode, best):
    evaluated(tmp_path, SCORES)
    keep = est.KeepBest(metric="score", mode=mode, count=2)
    assert kept(tmp_path, SCORES, newest=1, best=keep) == [*best, 6]


def test_the_newest_takes_no_place_of_the_best(tmp_path):
    evaluated(tmp_path, {1: 0.5, 2: 0.4, 3: 0.9})
    keep = est.KeepBest(metric="score", mode="max", count=2)
    assert kept(tmp_path, [1, 2, 3], newest=1, best=keep) == [1, 2, 3]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_nan_and_what_was_not_evaluated_are_never_best(tmp_path, mode):
    evaluated(tmp_path, {1: math.nan, 2: 0.5, 4: math.nan, 5: 0.6})
    keep = est.KeepBest(metric="score", mode=mode, count=3)
    assert kept(tmp_path, range(1, 7), newest=1, best=keep) == [2, 5, 6]


def test_infinity_is_worse_or_better_than_any_number(tmp_path):
    evaluated(tmp_path, {1: math.inf, 2: 0.5, 3: -math.inf})
    for mode, best in (("min", 3), ("max", 1)):
        keep = est.KeepBest(metric="score", mode=mode)
        assert kept(tmp_path, range(1, 5), newest=1, best=keep) == [best, 4]


def test_of_equals_the_newer_stays(tmp_path):
    evaluated(tmp_path, {1: 0.5, 2: 0.5, 3: 0.4})
    keep = est.KeepBest(metric="score", mode="max")
    assert kept(tmp_path, range(1, 5), newest=1, best=keep) == [2, 4]


def test_only_the_evaluations_of_the_given_name_and_metric_count(tmp_path):
    evaluated(tmp_path, {1: 0.9, 2: 0.1})
    evaluated(tmp_path, {1: 0.1, 2: 0.9}, name="test")
    by_test = est.KeepBest(metric="score", mode="max", name="test")
    assert kept(tmp_path, range(1, 4), newest=1, best=by_test) == [2, 3]
    by_other = est.KeepBest(metric="another")
    assert kept(tmp_path, range(1, 4), newest=1, best=by_other) == [3]


def test_an_evaluation_from_before_the_checkpoint_is_that_of_another_one(tmp_path):
    # Such as of a run that was deleted and begun again.
    evaluated(tmp_path, {1: 0.9, 2: 0.1}, hours=-1)
    keep = est.KeepBest(metric="score", mode="max")
    assert kept(tmp_path, range(1, 4), newest=1, best=keep) == [3]


def zigzag(features, labels, mode):
    """A model_fn whose evaluations have the loss 1, 3, 0, NaN at steps 1, 2, 3, 4."""
    import flax.linen as nn
    import jax.numpy as jnp

    weight = nn.Dense(1, use_bias=False, kernel_init=nn.initializers.zeros)(features["x"][:, :1])
    weight = 0.0 * weight[:, 0] + nn.Dense(1, use_bias=False, kernel_init=nn.initializers.zeros)(
        jnp.ones((1, 1))
    )
    losses = jnp.array([9.0, 1.0, 3.0, 0.0, jnp.nan])
    if mode == est.ModeKeys.EVAL:
        step = jnp.round(weight).astype(jnp.int32)[0]
        return est.EstimatorSpec(mode, loss=losses[step] + 0.0 * labels)
    return est.EstimatorSpec(mode, loss=-weight[0] + 0.0 * labels, optimizer=optax.sgd(1.0))


def test_what_evaluate_finds_between_two_calls_of_train_decides_what_stays(tmp_path):
    estimator = est.Estimator(
        zigzag,
        tmp_path,
        fakes.config(
            keep_checkpoint_max=1, keep_checkpoint_best=est.KeepBest(metric="loss", mode="min")
        ),
        train_batch_size=2,
        eval_batch_size=2,
    )
    found, stayed = [], []
    for _ in range(5):
        estimator.train(lambda: fakes.dataset(20).repeat(), steps=1)
        stayed.append(fakes.saved_steps(estimator))
        if len(found) < 4:
            found.append(estimator.evaluate(lambda: fakes.numbered(2))["loss"])
    np.testing.assert_array_equal(found, [1.0, 3.0, 0.0, np.nan])
    assert stayed == [[1], [1, 2], [1, 3], [3, 4], [3, 5]]


def test_what_was_found_of_the_checkpoint_of_another_model_dir_does_not_count(tmp_path):
    ours, theirs = (
        est.Estimator(
            fakes.mlp, tmp_path / name, fakes.config(), train_batch_size=2, eval_batch_size=2
        )
        for name in ("ours", "theirs")
    )
    for estimator in (ours, theirs):
        estimator.train(lambda: fakes.numbered(2))
    path = theirs.latest_checkpoint()
    ours.evaluate(lambda: fakes.numbered(2), checkpoint_path=path)
    assert est.hooks.read_eval_results(ours.eval_dir()) == []
    ours.evaluate(lambda: fakes.numbered(2))
    assert [one.global_step for one in est.hooks.read_eval_results(ours.eval_dir())] == [1]
