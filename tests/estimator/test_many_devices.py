"""The number of devices changes no number: losses, parameters, partial batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import estimator as est
from tests import fakes
from tests.fakes import config, dataset, final_state, mlp, numbered


def make(model_dir: Path, *, batch_size: int = 8, params: Any = None, **settings: Any):
    return est.Estimator(
        mlp,
        model_dir=model_dir,
        config=config(**settings),
        params=params,
        train_batch_size=batch_size,
    )


def test_eight_devices_train_as_one_does(tmp_path):
    params = {"dropout": 0.2, "optimizer": optax.adam(1e-2)}
    states, losses = {}, {}
    for devices in (1, 8):
        log = fakes.LoopLog()
        estimator = make(tmp_path / str(devices), params=params, devices=devices)
        states[devices] = final_state(
            estimator, lambda: dataset(80).repeat(), hooks=[log], max_steps=100
        )
        losses[devices] = log.losses
    fakes.assert_close(states[8], states[1], 1e-5)
    assert losses[8] == pytest.approx(losses[1], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("scalar_loss", [False, True], ids=["loss [batch]", "scalar loss"])
@pytest.mark.parametrize("rows", [3, 13, 19])
def test_a_partial_last_batch_is_trained_on_at_its_true_size(tmp_path, devices, scalar_loss, rows):
    optimizer = optax.sgd(0.05, momentum=0.9)
    log = fakes.LoopLog()
    estimator = make(
        tmp_path,
        params={"scalar_loss": scalar_loss, "optimizer": optimizer},
        devices=devices,
        iterations_per_loop=2,
    )
    state = final_state(estimator, lambda: numbered(rows), hooks=[log])
    expected = fakes.mlp_by_hand(fakes.batches(rows, 8), optimizer)
    fakes.assert_close(fakes.parameters(state), expected, 1e-6)
    assert log.examples == rows
    assert int(state["step"]) == -(-rows // 8)


@pytest.mark.parametrize("scalar_loss", [False, True], ids=["loss [batch]", "scalar loss"])
def test_partial_batches_in_the_middle_count_by_their_rows(tmp_path, scalar_loss):
    def input_fn():
        return dataset(13).batch(8).repeat(3)

    optimizer = optax.sgd(0.05, momentum=0.9)
    params = {"scalar_loss": scalar_loss, "optimizer": optimizer}
    estimator = make(tmp_path, params=params, devices=4, iterations_per_loop=4)
    state = final_state(estimator, input_fn)
    expected = fakes.mlp_by_hand(list(fakes.batches(13, 8)) * 3, optimizer)
    fakes.assert_close(fakes.parameters(state), expected, 1e-6)


def test_train_metrics_leave_out_padding(tmp_path):
    def model_fn(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, params, context)
        return est.EstimatorSpec(
            mode,
            loss=spec.loss,
            optimizer=optax.sgd(0.05),
            metrics={"id": features["id"].astype(jnp.float32)},
        )

    seen: list[float] = []
    hook = est.hooks.LambdaHook(after_loop=lambda view: seen.extend(view.metrics["id"].tolist()))
    estimator = est.Estimator(model_fn, tmp_path, config(devices=4), train_batch_size=8)
    estimator.train(lambda: numbered(13), hooks=[hook])
    assert seen == [3.5, 10.0]


def test_model_fn_is_told_of_padding_and_replicas(tmp_path):
    seen: list[Any] = []

    def model_fn(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, {}, context)
        assert params["context"] is context
        assert params["batch_size"] == context.batch_size == 8
        mask = jnp.ones(8, bool) if context.mask is None else context.mask
        seen.append(context.num_replicas)
        return est.EstimatorSpec(
            mode,
            loss=spec.loss,
            optimizer=optax.sgd(0.05),
            metrics={"real": jnp.full(8, mask.sum(), jnp.float32)},
        )

    estimator = est.Estimator(model_fn, tmp_path, config(devices=4), train_batch_size=8)
    rows: list[float] = []
    hook = est.hooks.LambdaHook(after_loop=lambda view: rows.extend(view.metrics["real"].tolist()))
    estimator.train(lambda: numbered(13), hooks=[hook])
    assert rows == [8, 5]
    assert set(seen) == {4}


def test_variables_are_whole_on_every_device_and_batches_are_split(tmp_path):
    shardings: list[Any] = []

    def model_fn(features, labels, mode, params, context):
        jax.debug.inspect_array_sharding(features["x"], callback=shardings.append)
        return mlp(features, labels, mode, params, context)

    kept: list[Any] = []
    hook = est.hooks.LambdaHook(
        begin=lambda context: shardings.clear(),  # those of the initialisation
        after_loop=lambda view: kept.append(view.state()),
    )
    estimator = est.Estimator(model_fn, tmp_path, config(devices=8), train_batch_size=8)
    estimator.train(lambda: numbered(16), hooks=[hook])
    for leaf in jax.tree.leaves(kept[-1]):
        assert len(leaf.sharding.device_set) == 8
        assert leaf.is_fully_replicated
    assert {sharding.shard_shape((8, 4)) for sharding in shardings} == {(1, 4)}
