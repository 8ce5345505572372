"""A step sees the same batches however these came to the devices."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from estimator.batches import Batches, PackedBatches
from estimator.device_config import DeviceConfig
from estimator.loop_program import LoopProgram
from estimator.loop_shape import LoopShape
from estimator.mesh import Placement
from estimator.runtime import Session
from estimator.steps import Outputs

CAPACITY, ROWS, COLUMNS = 12, 8, 9


def stack():
    rng = np.random.default_rng(0)
    features = {f"c{k}": rng.normal(size=(CAPACITY, ROWS)) for k in range(COLUMNS)}
    features = {name: column.astype(np.float32) for name, column in features.items()}
    return Batches(features, rng.integers(0, 9, (CAPACITY, ROWS), np.int32), None)


def step(carry, constants, batch):
    carry = carry * 0.5 + sum(batch.features.values()).sum()
    return carry, Outputs((carry, batch))


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("shape", LoopShape)
def test_packed_batches_run_as_others_do(shape, devices):
    place = Placement.make(DeviceConfig(devices=jax.devices()[:devices]))
    program = LoopProgram(Session(), step, place, shape=shape)
    packed = PackedBatches.of(stack())
    assert isinstance(packed, PackedBatches) and packed.shape == (CAPACITY, ROWS)
    outputs = []
    for batches in (stack(), packed):
        carry = jax.device_put(np.float32(0), place.replicated)
        batches = jax.device_put(batches, place.stacked_batches)
        outputs.append(program(carry, (), batches, 0, CAPACITY, global_step=0, steps_left=None)[1])

    plain, unpacked = (jax.tree.map(np.asarray, each.every_step) for each in outputs)
    np.testing.assert_array_equal(plain[0], unpacked[0])
    np.testing.assert_array_equal(unpacked[1].labels, stack().labels)
    for name, column in stack().features.items():
        np.testing.assert_array_equal(unpacked[1].features[name], column)


def many_columns(features, labels, mode):
    x = jnp.stack([features[f"c{k:02d}"] for k in range(COLUMNS)], axis=-1)
    outputs = nn.Dense(1)(x)[:, 0]
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"output": outputs})
    return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.sgd(1e-2))


def test_a_table_of_many_columns_travels_as_one_array_and_gives_the_same_numbers(
    tmp_path, monkeypatch
):
    rows = np.random.default_rng(0).normal(size=(29, COLUMNS + 1)).astype(np.float32)
    features = {f"c{k:02d}": np.ascontiguousarray(rows[:, k]) for k in range(COLUMNS)}
    data = est.input_pipeline.Dataset.from_arrays((features, rows[:, -1].copy()))
    pack, sent, results = PackedBatches.of, [], []

    def packed(batches):
        sent.append(pack(batches))
        return sent[-1]

    for name, way in (("packed", packed), ("plain", lambda batches: batches)):
        monkeypatch.setattr(PackedBatches, "of", way)
        estimator = est.Estimator(
            many_columns,
            tmp_path / name,
            config=est.RunConfig(
                loop_shape="device_loop",
                iterations_per_loop=5,
                devices=DeviceConfig(devices=jax.devices()[:1]),
            ),
            train_batch_size=8,
            eval_batch_size=8,
            predict_batch_size=8,
        )
        estimator.train(lambda: data.shuffle(0).batch(8).repeat(2))  # partial batches, too
        results.append(
            (estimator.evaluate(lambda: data), [*estimator.predict(lambda: data.take(29))])
        )

    assert all(len(each.arrays) == 1 for each in sent)
    assert results[0] == results[1]
