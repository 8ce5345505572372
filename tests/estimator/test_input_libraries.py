"""Each kind of input is trained on, evaluated, predicted and resumed exactly, and fails with words.

Every test runs for numpy arrays, generators, grain, tf.data and torch, where those are installed.
"""

from __future__ import annotations

import functools
import multiprocessing
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimator as est
from tests import fakes
from tests.workers import context as workers_context

pytestmark = pytest.mark.usefixtures("no_new_threads")


class Examples:
    """Random access to `count` examples; at example `at`, if given, it raises `error`."""

    def __init__(self, count, at=None, error=None):
        (self.features, self.labels), self.at, self.error = fakes.numbered(count), at, error

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        if self.at is not None and int(index) == self.at:
            raise self.error
        return {name: column[index] for name, column in self.features.items()}, self.labels[index]


def order_of(count, epoch, shuffled):
    return np.random.default_rng([1, epoch]).permutation(count) if shuffled else np.arange(count)


def numpy_input(examples, batch_size, epochs, shuffled):
    if examples.at is None:
        data = est.input_pipeline.Dataset.from_arrays((examples.features, examples.labels))
    else:
        data = est.input_pipeline.Dataset.from_source(examples)
    data = data.shuffle(seed=1) if shuffled else data
    return data.batch(batch_size).repeat(epochs)


def generator_input(examples, batch_size, epochs, shuffled):
    for epoch in range(epochs):
        order = order_of(len(examples), epoch, shuffled)
        for start in range(0, len(order), batch_size):
            rows = [examples[index] for index in order[start : start + batch_size]]
            yield jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def grain_input(examples, batch_size, epochs, shuffled):
    grain = pytest.importorskip("grain")
    if len(examples) == 0:  # grain's own batch refuses to be made of nothing
        return grain.MapDataset.source([]).to_iter_dataset()
    data = grain.MapDataset.source(examples)
    data = data.shuffle(seed=1) if shuffled else data
    return data.batch(batch_size).repeat(epochs)


def tf_input(examples, batch_size, epochs, shuffled):
    tf = pytest.importorskip("tensorflow")
    if examples.at is None:
        data = tf.data.Dataset.from_tensor_slices((examples.features, examples.labels))
    else:
        data = tf.data.Dataset.range(len(examples)).map(
            lambda index: tf.numpy_function(
                lambda i: examples[i][1], [index], tf.float32, stateful=False
            )
        )
        data = data.map(lambda label: ({"id": 0, "x": tf.zeros(4)}, tf.ensure_shape(label, ())))
    if shuffled:
        data = data.shuffle(len(examples), seed=1)
    return data.batch(batch_size).repeat(epochs)


def torch_input(examples, batch_size, epochs, shuffled, workers=0):
    pytest.importorskip("torch")
    from torch.utils import data

    class Epochs(data.Sampler):
        def __len__(self):
            return -(-len(examples) // batch_size) * epochs

        def __iter__(self):
            for epoch in range(epochs):
                order = order_of(len(examples), epoch, shuffled).tolist()
                yield from (order[at : at + batch_size] for at in range(0, len(order), batch_size))

    return data.DataLoader(
        examples,
        batch_sampler=Epochs(),
        collate_fn=tensors_of,
        num_workers=workers,
        multiprocessing_context=workers_context() if workers else None,
    )


def tensors_of(rows):
    torch = pytest.importorskip("torch")
    return jax.tree.map(lambda *leaves: torch.as_tensor(np.stack(leaves)), *rows)


KINDS = {
    "numpy": numpy_input,
    "generator": generator_input,
    "grain": grain_input,
    "tf.data": tf_input,
    "torch": torch_input,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def input_fn_of(kind, count, *, epochs=1, shuffled=False, at=None, error=None):
    """Returns an input_fn over `numbered(count)` that reads them through a library."""
    examples = Examples(count, at, error)
    return lambda params: KINDS[kind](examples, params["batch_size"], epochs, shuffled)


def echo(features, labels, mode):
    """Predicts the ids; the loss is the label, so that its mean tells what was counted."""
    ids = features["id"].astype(jnp.float32)
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"id": features["id"]})
    return est.EstimatorSpec(mode, loss=labels, metrics={"id": ids})


@functools.cache
def echo_estimator(model_dir, batch_size, devices):
    return est.Estimator(
        echo,
        model_dir,
        config=fakes.config(devices=devices),
        eval_batch_size=batch_size,
        predict_batch_size=batch_size,
    )


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("echo")


def trainer(model_dir, ids, **settings):
    return est.Estimator(
        fakes.mlp,
        model_dir,
        params={"host_call": ids},
        config=fakes.config(iterations_per_loop=4, **settings),
        train_batch_size=2,
        eval_batch_size=2,
        predict_batch_size=2,
    )


@every_kind
@pytest.mark.parametrize("stopped_at", [8, 5])
def test_a_resume_in_a_later_shuffled_epoch_keeps_the_order(tmp_path, kind, stopped_at):
    input_fn = input_fn_of(kind, 10, epochs=3, shuffled=True)
    whole, parts = fakes.IdLog(), fakes.IdLog()
    trainer(tmp_path / "whole", whole).train(input_fn)

    trainer(tmp_path / "parts", parts).train(input_fn, max_steps=stopped_at)
    trainer(tmp_path / "parts", parts).train(input_fn)

    assert parts.steps == list(range(1, 16))
    assert parts.ids == whole.ids
    epochs = [whole.all_ids[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@every_kind
@pytest.mark.parametrize("count, batch_size, devices", [(1, 8, 1), (13, 8, 4), (40, 10, 1)])
def test_there_is_one_prediction_an_example_in_input_order(
    model_dir, kind, count, batch_size, devices
):
    model = echo_estimator(model_dir, batch_size, devices)
    results = model.predict(input_fn_of(kind, count))
    assert [int(result["id"]) for result in results] == list(range(count))


@every_kind
@pytest.mark.parametrize("count, devices, steps", [(5, 1, None), (5, 1, 2), (19, 4, None)])
def test_every_example_is_evaluated_once(model_dir, kind, count, devices, steps):
    model = echo_estimator(model_dir, 8, devices)
    results = model.evaluate(input_fn_of(kind, count), steps=steps)
    _, labels = fakes.numbered(count)
    assert results["loss"] == pytest.approx(labels.mean(dtype=np.float64), rel=1e-5)
    assert results["id"] == pytest.approx(np.arange(count).mean())


@every_kind
def test_an_input_without_examples_is_named_where_it_cannot_be(model_dir, tmp_path, kind):
    input_fn = input_fn_of(kind, 0)
    with pytest.raises(ValueError, match="input_fn produced no batches"):
        trainer(tmp_path, None).train(input_fn, steps=1)
    model = echo_estimator(model_dir, 8, 1)
    with pytest.raises(ValueError, match="input_fn produced no batches"):
        model.evaluate(input_fn)
    assert list(model.predict(input_fn)) == []


def raised(kind, caught, error):
    """Checks that the error of the user is the one that came out, or what its library makes of it:
    TensorFlow and the workers of torch pass on the message."""
    if kind == "tf.data":
        import tensorflow as tf

        assert isinstance(caught.value, tf.errors.OpError)
    else:
        assert caught.value is error
    assert "bad record 5" in str(caught.value)


@every_kind
@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_an_error_of_the_users_code_arrives_as_itself(tmp_path, model_dir, kind, call):
    error = ValueError("bad record 5")
    input_fn = input_fn_of(kind, 20, at=5, error=error)
    model = trainer(tmp_path, None) if call == "train" else echo_estimator(model_dir, 2, 1)
    with pytest.raises(Exception) as caught:
        results = getattr(model, call)(input_fn)
        list(results)
    raised(kind, caught, error)


@every_kind
def test_a_stop_iteration_of_the_users_code_is_not_the_end(model_dir, kind):
    input_fn = input_fn_of(kind, 5, at=2, error=StopIteration("bad record 5"))
    with pytest.raises(Exception, match="StopIteration"):
        list(echo_estimator(model_dir, 1, 1).predict(input_fn))


@every_kind
def test_leaving_predictions_early_leaves_nothing_behind(model_dir, kind):
    results = echo_estimator(model_dir, 2, 1).predict(input_fn_of(kind, 1000))
    assert int(next(results)["id"]) == 0
    results.close()
    assert not multiprocessing.active_children()


def test_an_error_in_a_worker_process_of_torch_arrives_and_no_process_is_left(model_dir):
    examples = Examples(20, 5, ValueError("bad record 5"))

    def input_fn(params):
        return torch_input(examples, params["batch_size"], 1, False, workers=2)

    with warnings.catch_warnings(), pytest.raises(ValueError, match="bad record 5"):
        warnings.simplefilter("ignore")
        list(echo_estimator(model_dir, 2, 1).predict(input_fn))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("is_seeded", [True, False])
def test_a_resume_in_an_order_that_torch_draws_anew_is_warned_of(tmp_path, caplog, is_seeded):
    torch = pytest.importorskip("torch")

    def input_fn(params):
        generator = torch.Generator().manual_seed(7) if is_seeded else None
        return torch.utils.data.DataLoader(
            Examples(20, None, None),
            batch_size=params["batch_size"],
            shuffle=True,
            collate_fn=tensors_of,
            generator=generator,
        )

    trainer(tmp_path, None).train(input_fn, steps=2)
    assert "without a seed" not in caplog.text  # nothing was resumed yet
    trainer(tmp_path, None).train(input_fn, steps=2)
    assert ("without a seed" in caplog.text) == (not is_seeded)
