"""Sequences that are padded to one of a few lengths: one program for each, and the same numbers."""

from __future__ import annotations

import collections

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est

LENGTHS = [4, 8, 16]

pytestmark = pytest.mark.usefixtures("no_new_threads")


def sequences(count, seed):
    """Yields examples of 1 to 16 numbers, each with their sum as its label."""
    for length in np.random.default_rng(seed).integers(1, 17, count):
        yield {"tokens": np.arange(length, dtype=np.float32)}, np.float32(np.arange(length).sum())


def in_buckets(count, seed=0):
    dataset = est.input_pipeline.Dataset.from_generator(lambda: sequences(count, seed))
    return lambda: dataset.batch(2, pad_to=LENGTHS)


class Summing:
    """A model_fn that sums the tokens of each example; remembers for which lengths it ran."""

    def __init__(self):
        self.lengths = collections.Counter()

    def __call__(self, features, labels, mode):
        tokens = features["tokens"]
        self.lengths[tokens.shape[1]] += 1
        scale = nn.Dense(1, use_bias=False, kernel_init=nn.initializers.ones)(jnp.ones((1, 1)))
        sums = tokens.sum(axis=1) * scale[0, 0]
        if mode == est.ModeKeys.PREDICT:
            return est.EstimatorSpec(mode, predictions={"sum": sums})
        loss = jnp.abs(sums - labels)
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.0), metrics={"sum": labels})


def estimator(model_fn, model_dir):
    return est.Estimator(
        model_fn,
        model_dir=model_dir,
        train_batch_size=2,
        eval_batch_size=2,
        predict_batch_size=2,
        config=est.RunConfig(devices=est.DeviceConfig(devices=jax.devices()[:1])),
    )


RUNS = {
    "train": lambda model, input_fn: model.train(input_fn),
    "evaluate": lambda model, input_fn: model.evaluate(input_fn),
    "predict": lambda model, input_fn: list(model.predict(input_fn)),
}


@pytest.mark.parametrize("run", RUNS)
def test_there_is_one_program_for_each_length(tmp_path, compilations, run):
    model_fn = Summing()
    model = estimator(model_fn, tmp_path)
    RUNS[run](model, in_buckets(60))
    assert sorted(model_fn.lengths) == LENGTHS
    model_fn.lengths[16] -= 1  # the variables are made for the first batch, of this length
    traced = dict(model_fn.lengths)
    assert len(set(traced.values())) == 1
    compiled = compilations.count

    RUNS[run](model, in_buckets(60, seed=1))  # the same lengths, in another order

    assert model_fn.lengths == traced
    assert compilations.count == compiled


def test_every_sequence_counts_once(tmp_path):
    model = estimator(Summing(), tmp_path)
    sums = [float(label) for _, label in sequences(61, 0)]

    results = model.evaluate(in_buckets(61))
    predictions = [float(result["sum"]) for result in model.predict(in_buckets(61))]

    assert predictions == sums
    assert results["loss"] == 0
    assert results["sum"] == pytest.approx(np.mean(sums))


def test_no_batch_is_lost_where_the_length_changes(tmp_path):
    steps = []

    class Steps(est.hooks.Hook):
        def after_loop(self, view):
            steps.append(view.examples)

    model = estimator(Summing(), tmp_path)
    model.train(in_buckets(20), hooks=[Steps()], max_steps=4)
    model.train(in_buckets(20), hooks=[Steps()])

    assert sum(steps) == 20
