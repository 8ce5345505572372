"""host_call: which steps it sees, in what form, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from tests import fakes
from tests.events import values_in
from tests.fakes import config, dataset, mlp, numbered


def with_host_call(host_call: Any) -> Any:
    """Returns a model_fn whose host_call is `(host_call[0], host_call[1](loss, context))`."""
    function, make_tensors = host_call

    def model_fn(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, params, context)
        tensors = make_tensors(spec.loss, context)
        return est.EstimatorSpec(
            mode, loss=spec.loss, optimizer=optax.sgd(0.05), host_call=(function, tensors)
        )

    return model_fn


def make(model_fn: Any, model_dir: Path, **settings: Any) -> est.Estimator:
    return est.Estimator(model_fn, model_dir, config(**settings), train_batch_size=8)


@pytest.mark.parametrize(
    ("every_n", "expected"), [(1, list(range(4, 24))), (4, [4, 8, 12, 16, 20])]
)
@pytest.mark.parametrize("iterations", [10, 3])
def test_it_is_called_once_for_each_due_step_in_order(tmp_path, every_n, expected, iterations):
    seen = []

    def record(counted, loss, step):
        seen.append((step, counted, loss))

    model_fn = with_host_call(
        (record, lambda loss, context: {"counted": context.step + 1, "loss": loss.mean()})
    )
    settings = {"devices": 8, "iterations_per_loop": iterations}
    settings["host_call_every_n_steps"] = every_n
    make(model_fn, tmp_path, **settings).train(lambda: dataset(40).repeat(), max_steps=3)
    seen.clear()
    log = fakes.LoopLog()
    make(model_fn, tmp_path, **settings).train(lambda: dataset(40).repeat(), steps=20, hooks=[log])
    assert [step for step, _, _ in seen] == expected
    for step, counted, loss in seen:
        assert type(step) is int
        assert isinstance(counted, np.ndarray | np.generic) and np.shape(counted) == ()
        assert counted == step
        assert np.shape(loss) == () and loss == np.float32(log.losses[step - 4])


def test_a_dict_is_passed_by_name_and_a_list_by_position(tmp_path):
    seen = []

    def by_position(first, second):
        seen.append((first.shape, second.shape))

    make(
        with_host_call((by_position, lambda loss, context: [loss, jnp.zeros((2, 3))])),
        tmp_path / "list",
    ).train(lambda: dataset(8))
    make(
        with_host_call(
            (by_position, lambda loss, context: {"second": loss, "first": jnp.zeros((2, 3))})
        ),
        tmp_path / "dict",
    ).train(lambda: dataset(8))
    assert seen == [((8,), (2, 3)), ((2, 3), (8,))]


def test_a_tensor_called_step_is_passed_instead_of_the_count(tmp_path):
    seen = []
    model_fn = with_host_call(
        (lambda step: seen.append(step), lambda loss, context: {"step": context.step * 10})
    )
    make(model_fn, tmp_path).train(lambda: dataset(16))
    assert [int(step) for step in seen] == [0, 10]


def test_the_arrays_it_is_given_may_be_kept(tmp_path):
    kept = []
    model_fn = with_host_call(
        (lambda row: kept.append(row), lambda loss, context: [jnp.full(3, context.step)])
    )
    make(model_fn, tmp_path, iterations_per_loop=2).train(lambda: dataset(80))
    np.testing.assert_array_equal(kept, [[i] * 3 for i in range(10)])


def test_every_call_is_made_before_train_returns(tmp_path):
    import threading

    release, seen = threading.Event(), []

    def slow(loss, step):
        release.wait(10)
        seen.append(step)

    estimator = make(
        with_host_call((slow, lambda loss, context: {"loss": loss})),
        tmp_path,
        iterations_per_loop=2,
    )
    last = est.hooks.LambdaHook(before_loop=lambda step: release.set() if step >= 2 else None)
    estimator.train(lambda: dataset(80), hooks=[last])
    assert seen == list(range(1, 11))


@pytest.mark.parametrize(
    ("host_call", "words"),
    [
        ((lambda loss: None, lambda loss, context: {"lost": loss}), ["lost", "loss"]),
        ((lambda a, b: None, lambda loss, context: [loss]), ["1 tensors", "b"]),
        ((lambda a: None, lambda loss, context: [loss, loss]), ["2 tensors"]),
        ((lambda loss: None, lambda loss, context: loss), ["list", "dict"]),
        ((3, lambda loss, context: [loss]), ["host_call", "pair"]),
        ((lambda name: None, lambda loss, context: {"name": "a"}), ["name", "str"]),
    ],
    ids=["name", "too few", "too many", "bare tensor", "no function", "no array"],
)
def test_tensors_that_do_not_fit_the_function_are_refused(
    tmp_path, host_call, words, nothing_compiled
):
    estimator = make(with_host_call(host_call), tmp_path)
    with pytest.raises(TypeError, match="host_call") as caught:
        estimator.train(lambda: dataset(8))
    for word in words:
        assert word in str(caught.value)


def test_images_of_the_model_are_written_at_the_due_steps(tmp_path):
    pytest.importorskip("PIL")

    def model_fn(features, labels, mode, params, context):
        images = est.hooks.ImageSummaryHook(max_images=1)
        return dataclasses.replace(
            mlp(features, labels, mode, params, context),
            host_call=(images.write, {"x": jnp.reshape(features["x"], [-1, 2, 2])}),
            training_hooks=[images],
        )

    estimator = est.Estimator(
        model_fn, tmp_path, config(host_call_every_n_steps=2), train_batch_size=4
    )
    estimator.train(lambda: numbered(20))
    assert [(value.tag, step) for step, value in values_in(tmp_path)] == [("x/0", 2), ("x/0", 4)]
