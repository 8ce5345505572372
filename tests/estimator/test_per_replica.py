"""replication="per_replica": model_fn sees the rows of its replica, and the numbers stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from tests import fakes, models
from tests.fakes import final_state


def devices(count: int, replication: str = "per_replica", **settings: Any) -> est.DeviceConfig:
    return est.DeviceConfig(devices=jax.devices()[:count], replication=replication, **settings)


LAYOUTS = {
    "4 replicas": devices(4),
    "2 of 2 cores": devices(4, num_cores_per_replica=2),
    "fsdp": devices(4, shard_parameters="fsdp", fsdp_size=2, fsdp_min_elements=1),
    "1 replica": devices(1),
}
GLOBAL = devices(1, "global")


def make(model_fn: Any, folder: Path, placed: est.DeviceConfig, params: Any = None, **settings):
    return est.Estimator(
        model_fn,
        folder,
        fakes.config(devices=placed, **settings),
        params=params,
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scalar_loss", [False, True], ids=["loss [batch]", "scalar loss"])
@pytest.mark.parametrize("rows", [13, 12])  # last batches that do not divide, and that do
def test_it_trains_as_the_global_batch_does(tmp_path, layout, scalar_loss, rows):
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.05, momentum=0.9))
    params = {"optimizer": optimizer, "scalar_loss": scalar_loss}
    log = fakes.LoopLog()
    estimator = make(fakes.mlp, tmp_path, LAYOUTS[layout], params)

    state = final_state(estimator, lambda: fakes.dataset(rows).batch(8).repeat(2), hooks=[log])

    expected = fakes.mlp_by_hand(list(fakes.batches(rows, 8)) * 2, optimizer)
    fakes.assert_close(fakes.parameters(state), expected, 1e-6)
    assert log.examples == 2 * rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convnet", "transformer"])
def test_fifty_steps_agree_with_the_global_batch(tmp_path, name):
    model_fn, data = {
        "convnet": (models.convnet, models.images(40)),
        "transformer": (models.transformer, models.sentences(40)),
    }[name]
    losses = {}
    for layout in (GLOBAL, LAYOUTS["4 replicas"]):
        log = fakes.LoopLog()
        estimator = make(model_fn, tmp_path / layout.replication, layout)
        estimator.train(
            lambda: est.input_pipeline.Dataset.from_arrays(data).repeat(), [log], max_steps=50
        )
        losses[layout.replication] = log.losses
    np.testing.assert_allclose(losses["per_replica"], losses["global"], rtol=1e-5)


def test_model_fn_is_told_which_replica_it_is(tmp_path):
    seen: list[Any] = []

    def host_call(replica, rows):
        seen.append((replica.tolist(), rows.tolist()))

    def model_fn(features, labels, mode, params, context):
        assert params["batch_size"] == context.batch_size == len(labels) == 2
        assert params["context"] is context
        assert (context.num_replicas, context.axis_name) == (4, "data")
        spec = fakes.mlp(features, labels, mode, params, context)
        replica = jnp.full(2, context.replica_id)
        rows = jax.lax.psum(2 * jnp.ones(2, jnp.int32), context.axis_name)
        return est.EstimatorSpec(
            mode, loss=spec.loss, optimizer=optax.sgd(0.1), host_call=(host_call, [replica, rows])
        )

    make(model_fn, tmp_path, LAYOUTS["4 replicas"]).train(lambda: fakes.numbered(8))

    assert seen == [([0, 0, 1, 1, 2, 2, 3, 3], [8] * 8)]


def test_host_call_gets_the_rows_of_all_replicas_in_the_order_of_the_batch(tmp_path):
    found = {}
    for layout in (GLOBAL, LAYOUTS["4 replicas"], LAYOUTS["fsdp"]):
        log, losses = fakes.IdLog(), []

        def host_call(id, loss, step, log=log, losses=losses):
            log(id, loss, step)
            losses.append(float(loss))

        estimator = make(fakes.mlp, tmp_path / str(id(layout)), layout, {"host_call": host_call})
        estimator.train(lambda: fakes.numbered(13))  # the last five do not divide
        found[id(layout)] = log.steps, log.ids, losses
    expected, *others = found.values()
    assert expected[:2] == ([1, 2], [list(range(8)), list(range(8, 13))])
    for other in others:
        assert other[:2] == expected[:2]
        assert other[2] == pytest.approx(expected[2], rel=1e-5)  # a scalar: the replicas' mean


def test_a_tensor_that_has_no_mean_is_that_of_the_first_replica(tmp_path):
    seen: list[Any] = []

    def model_fn(features, labels, mode, params, context):
        spec = fakes.mlp(features, labels, mode, params, context)
        host_call = (lambda who: seen.append(int(who)), [context.replica_id + 7])
        return est.EstimatorSpec(
            mode, loss=spec.loss, optimizer=optax.sgd(0.1), host_call=host_call
        )

    make(model_fn, tmp_path, LAYOUTS["4 replicas"]).train(lambda: fakes.numbered(8))

    assert seen == [7]


class Largest:
    """A metric that merges itself."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def empty(cls):
        return cls(jnp.float32(-jnp.inf))

    def merge(self, other):
        return Largest(jnp.maximum(self.value, other.value))

    def compute(self):
        return self.value


jax.tree_util.register_pytree_node(Largest, lambda m: ((m.value,), None), lambda _, c: Largest(*c))


def measured(features, labels, mode, params, context):
    spec = fakes.mlp(features, labels, mode, params, context)
    if mode == est.ModeKeys.PREDICT:
        return spec
    real = True if context.mask is None else context.mask
    ids = jnp.where(real, features["id"], -1).astype(jnp.float32)
    return est.EstimatorSpec(
        mode,
        loss=spec.loss,
        optimizer=optax.sgd(0.05),
        metrics={"id": features["id"].astype(jnp.float32), "largest": Largest(ids.max())},
        eval_metrics=(lambda id: {"host id": id}, [features["id"]]),
    )


@pytest.mark.parametrize("layout", ["4 replicas", "2 of 2 cores", "fsdp"])
def test_it_evaluates_and_predicts_as_the_global_batch_does(tmp_path, layout):
    found = {}
    for placed in (GLOBAL, LAYOUTS[layout]):
        estimator = make(measured, tmp_path / placed.replication, placed)
        seen: list[Any] = []
        hook = est.hooks.LambdaHook(
            after_loop=lambda view, seen=seen: seen.extend(view.metrics["largest"].tolist())
        )
        estimator.train(lambda: fakes.numbered(8), [hook])
        metrics = estimator.evaluate(lambda: fakes.numbered(13))
        outputs = [example["output"] for example in estimator.predict(lambda: fakes.numbered(13))]
        found[placed.replication] = metrics, outputs
        assert seen == [7]
        assert len(outputs) == 13
        assert metrics["largest"] == 12
        assert metrics["id"] == metrics["host id"] == 6
    assert found["per_replica"][0] == pytest.approx(found["global"][0], rel=1e-5)
    np.testing.assert_allclose(found["per_replica"][1], found["global"][1], rtol=1e-5)


def test_shared_batch_statistics_are_those_of_the_global_batch(tmp_path):
    states = {}
    for placed in (GLOBAL, LAYOUTS["4 replicas"]):
        # Adam would make much of the gradient of a bias before it, which is nothing but rounding.
        params = {"batch_norm": "shared", "optimizer": optax.sgd(0.05)}
        estimator = make(models.convnet, tmp_path / placed.replication, placed, params)
        states[placed.replication] = final_state(estimator, lambda: models.images(16))
    assert any("batch_stats" in name for name in states["global"])
    fakes.assert_close(states["per_replica"], states["global"], 2e-5)


def test_batch_statistics_are_each_replicas_own_and_their_means_are_kept(tmp_path):
    def model_fn(features, labels, mode):
        training = mode == est.ModeKeys.TRAIN
        x = nn.BatchNorm(use_running_average=not training, momentum=0.5)(features["x"])
        loss = (nn.Dense(1, kernel_init=fakes.ramp)(x)[:, 0] - labels) ** 2
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.05))

    state = final_state(make(model_fn, tmp_path, LAYOUTS["4 replicas"]), lambda: fakes.numbered(8))

    features, labels = fakes.numbered(8)
    x = features["x"].reshape(4, 2, 4)  # replicas, rows
    mean, variance = x.mean(1), x.var(1)
    np.testing.assert_allclose(
        state["model_state/batch_stats/BatchNorm_0/mean"], 0.5 * mean.mean(0), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        state["model_state/batch_stats/BatchNorm_0/var"], 0.5 + 0.5 * variance.mean(0), rtol=1e-5
    )
    normal = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5)
    kernel = np.linspace(-0.5, 0.5, 4)
    error = normal @ kernel - labels.reshape(4, 2)
    gradient = 2 * (error[..., None] * normal).mean((0, 1))
    np.testing.assert_allclose(
        state["params/Dense_0/kernel"][:, 0], kernel - 0.05 * gradient, rtol=1e-4, atol=1e-5
    )


def test_each_replica_has_random_numbers_of_its_own(tmp_path):
    seen: list[Any] = []

    def model_fn(features, labels, mode, params, context):
        spec = fakes.mlp(features, labels, mode, params, context)
        numbers = jax.random.uniform(context.rng, (context.batch_size,))
        return est.EstimatorSpec(
            mode,
            loss=spec.loss,
            optimizer=optax.sgd(0.1),
            host_call=(lambda numbers: seen.append(numbers), [numbers]),
        )

    make(model_fn, tmp_path, LAYOUTS["4 replicas"], seed=3).train(lambda: fakes.numbered(8))

    step = jax.random.fold_in(jax.random.key(3), 0)
    own = [jax.random.uniform(jax.random.fold_in(step, replica), (2,)) for replica in range(4)]
    np.testing.assert_array_equal(seen[0], np.concatenate(own))


def test_an_optimizer_made_of_an_array_of_model_fn_is_told_what_to_do(tmp_path):
    def model_fn(features, labels, mode, params, context):
        spec = fakes.mlp(features, labels, mode, params, context)
        return est.EstimatorSpec(
            mode, loss=spec.loss, optimizer=optax.sgd(0.1 / (1.0 + context.step))
        )

    with pytest.raises(TypeError, match="Give the optimizer a schedule"):
        make(model_fn, tmp_path, LAYOUTS["4 replicas"]).train(lambda: fakes.numbered(8))


def test_a_replica_may_say_where_its_activations_lie_within_it(tmp_path):
    seen: list[Any] = []

    def model_fn(features, labels, mode):
        x = nn.Dense(8)(features["x"])
        x = jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec(None, "model"))
        seen.append(x.shape)
        loss = (nn.Dense(1)(x)[:, 0] - labels) ** 2
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.05))

    make(model_fn, tmp_path, LAYOUTS["2 of 2 cores"]).train(lambda: fakes.numbered(8))

    assert set(seen) == {(4, 8)}
