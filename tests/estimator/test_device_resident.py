"""Data that stays on the devices gives, to the bit, what data from the host gives."""

from __future__ import annotations

import gc
import types
import weakref

import jax
import numpy as np
import optax
import pytest

import estimator as est
from estimator.batches import ResidentBatches
from estimator.device_config import DeviceConfig
from estimator.device_tables import DeviceTables
from estimator.loop_program import LoopProgram
from estimator.loop_shape import LoopShape
from estimator.mesh import Placement
from estimator.runtime import Session
from estimator.steps import Outputs
from input_pipeline import Columns
from tests.fakes import mlp, numbered

ROWS = 45


def dataset(*, device_resident):
    return est.input_pipeline.Dataset.from_arrays(numbered(ROWS), device_resident=device_resident)


def make(model_dir, devices=1, **params):
    config = est.RunConfig(
        loop_shape="device_loop",
        iterations_per_loop=7,
        devices=DeviceConfig(devices=jax.devices()[:devices]),
    )
    return est.Estimator(
        mlp,
        model_dir,
        config=config,
        params={"optimizer": optax.sgd(1e-2), **params},
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
    )


def run(model_dir, *, device_resident, **options):
    """Returns losses of the evaluation and predictions after 20 shuffled steps."""
    data = dataset(device_resident=device_resident)
    estimator = make(model_dir, **options)
    estimator.train(lambda: data.shuffle(3).repeat(), max_steps=20)
    results = estimator.evaluate(lambda: data)
    return results, [float(row["output"]) for row in estimator.predict(lambda: data)]


@pytest.mark.parametrize("devices", [1, 4])
def test_training_evaluation_and_prediction_agree_with_the_host_path(tmp_path, devices):
    wanted = run(tmp_path / "host", device_resident=False, devices=devices)
    got = run(tmp_path / "resident", device_resident=True, devices=devices)
    assert len(got[1]) == ROWS
    assert got == wanted


def test_partial_batches_of_a_scalar_loss_run_at_their_true_size(tmp_path):
    wanted = run(tmp_path / "host", device_resident=False, scalar_loss=True)
    got = run(tmp_path / "resident", device_resident=True, scalar_loss=True)
    assert got == wanted


def test_partial_batches_in_training_agree_with_the_host_path(tmp_path):
    losses = {}
    for resident in (False, True):
        seen = losses.setdefault(resident, [])
        estimator = make(tmp_path / str(resident))
        data = dataset(device_resident=resident).shuffle(0).batch(8).repeat(2)
        hook = est.hooks.LambdaHook(after_loop=lambda view, seen=seen: seen.extend(view.losses))
        estimator.train(lambda data=data: data, hooks=[hook])
    assert len(losses[True]) == 12  # two epochs of five whole batches and one of five rows
    assert losses[True] == losses[False]


def test_a_run_goes_on_where_one_with_data_from_the_host_ended(tmp_path):
    params = {}
    for first, second in [(False, False), (False, True), (True, False)]:
        estimator = make(tmp_path / f"{first}-{second}")
        for resident, last in ((first, 9), (second, 20)):
            data = dataset(device_resident=resident).shuffle(3).repeat()
            estimator.train(lambda data=data: data, max_steps=last)
        names = estimator.get_variable_names()
        params[first, second] = [estimator.get_variable_value(name) for name in names]
    for got in params.values():
        for value, wanted in zip(got, params[False, False], strict=True):
            np.testing.assert_array_equal(value, wanted)


def placement(devices):
    return Placement.make(DeviceConfig(devices=jax.devices()[:devices]))


TABLE = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20, dtype=np.int32)
NUMBERS = np.random.default_rng(0).integers(0, 20, (12, 8), np.int32)
MASK = NUMBERS != 3


def step(carry, constants, batch):
    """Order matters, and all of a batch goes out."""
    carry = carry * 0.5 + (batch.features[:, 0] * batch.mask).sum()
    return carry, Outputs((carry, batch))


def gathering(place, shape):
    """Returns a program for `step`, and the arguments that it takes."""
    table = jax.device_put(TABLE, place.replicated)
    rows, mask = jax.device_put((NUMBERS, MASK), place.stacked_batches)
    carry = jax.device_put(np.float32(0), place.replicated)
    return LoopProgram(Session(), step, place, shape=shape), (
        carry,
        (),
        ResidentBatches(table, rows, mask),
    )


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("shape", LoopShape)
def test_every_shape_of_loop_gathers_what_the_host_would(shape, devices):
    program, arguments = gathering(placement(devices), shape)

    _, outputs = program(*arguments, 0, 12, global_step=0, steps_left=None)

    carries, batches = outputs.every_step
    wanted = [0.0]
    for numbers, mask in zip(NUMBERS, MASK, strict=True):
        wanted.append(wanted[-1] * 0.5 + TABLE[0][numbers[mask], 0].sum())
    np.testing.assert_allclose(carries, wanted[1:], rtol=1e-6)
    np.testing.assert_array_equal(batches.features, TABLE[0][NUMBERS])
    np.testing.assert_array_equal(batches.labels, TABLE[1][NUMBERS])


def test_each_device_gathers_its_own_rows():
    program, arguments = gathering(placement(4), LoopShape.DEVICE_LOOP)
    text = program.metadata(*arguments).hlo_text
    assert "f32[12,2,2]" in text  # its quarter of the stacked features
    assert "all-gather" not in text and "f32[8,2]" not in text


def test_a_dataset_is_put_on_the_devices_once_and_leaves_them_with_its_last_user():
    tables = DeviceTables(placement(2))
    columns = Columns.of((np.arange(3.0), np.arange(3)))
    features, labels = tables.on_devices(columns)
    assert features.sharding.num_devices == labels.sharding.num_devices == 2
    assert features.sharding.is_fully_replicated

    assert tables.on_devices(columns)[0] is features
    assert tables.on_devices(Columns.of((np.arange(3.0), None)))[0] is not features

    on_devices = weakref.ref(features)
    del columns, features, labels
    gc.collect()
    assert on_devices() is None


def test_an_estimator_keeps_a_dataset_on_the_devices_between_runs(tmp_path, monkeypatch):
    put = []

    def on_devices(self, columns, original=DeviceTables.on_devices):
        put.append(original(self, columns))
        return put[-1]

    monkeypatch.setattr(DeviceTables, "on_devices", on_devices)
    estimator = make(tmp_path)
    data = dataset(device_resident=True)
    estimator.train(lambda: data.shuffle(0).repeat(), steps=2)
    estimator.evaluate(lambda: data)

    assert len(put) == 2 and put[0] is put[1]


def test_more_data_than_a_device_has_memory_for_is_refused():
    def with_memory(left):
        stats = {"bytes_limit": 10**10, "bytes_in_use": 10**10 - left}
        device = types.SimpleNamespace(memory_stats=lambda: stats, __str__=lambda self: "gpu:0")
        place = placement(1)
        mesh = types.SimpleNamespace(local_devices=[device])
        return types.SimpleNamespace(mesh=mesh, replicated=place.replicated)

    columns = Columns.of((np.zeros((1000, 1000), np.float32), None))
    DeviceTables(with_memory(4_000_000)).on_devices(columns)
    with pytest.raises(ValueError, match=r"takes 0\.004 GB on each device.*has 0\.003 GB left"):
        DeviceTables(with_memory(3_000_000)).on_devices(columns)
