"""Tensors that are cut within a replica, and those whose batch is not their first dimension."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from estimator.batches import Batches
from estimator.device_config import DeviceConfig
from estimator.input_config import InputPipelineConfig
from estimator.input_partition import InputPartition
from estimator.mesh import Placement

pytestmark = pytest.mark.usefixtures("no_new_threads")

IMAGES = np.random.default_rng(0).normal(size=(20, 8, 6, 1)).astype(np.float32)
TARGETS = IMAGES.mean(axis=(1, 2, 3))


def partition(*, devices=4, cores=4, **settings):
    config = DeviceConfig(devices=jax.devices()[:devices], num_cores_per_replica=cores)
    return InputPartition(Placement.make(config), InputPipelineConfig(**settings))


def spec(**shapes):
    features = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    return features, jax.ShapeDtypeStruct((4,), np.float32)


def pieces(array):
    """Returns the index of each device's piece of an array."""
    return [shard.index for shard in array.addressable_shards]


def test_a_named_tensor_is_cut_within_a_replica_and_others_are_whole():
    where = partition(devices=8, partition_dims={"features/image": (1, 2, 2)})
    batches = Batches({"image": np.zeros((3, 4, 8, 6)), "x": np.zeros((3, 4))}, None, None)
    placed = jax.device_put(batches, where.shardings(batches))

    assert {shard.data.shape for shard in placed.features["image"].addressable_shards} == {
        (3, 2, 4, 3)
    }
    assert {shard.data.shape for shard in placed.features["x"].addressable_shards} == {(3, 2)}
    assert len(set(map(str, pieces(placed.features["image"])))) == 8
    assert len(set(map(str, pieces(placed.features["x"])))) == 2


def test_without_names_all_leaves_have_one_sharding():
    batches = Batches({"x": np.zeros((3, 4))}, None, None)
    assert isinstance(partition().shardings(batches), jax.sharding.NamedSharding)


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"partition_dims": {"features/pic": (1, 4, 1, 1)}},
            "partition_dims names 'features/pic', which the input does not have. It has "
            "features/image, labels",
        ),
        ({"batch_axis": {"image": 1}}, "batch_axis names 'image', which the input does not have"),
        ({"batch_axis": {"features/image": 4}}, r"batch_axis\['features/image'\]=4.*4 dimensions"),
        (
            {"partition_dims": {"features/image": (1, 4)}},
            r"\['features/image'\]=\(1, 4\) has 2 dimensions, but the tensor has 4",
        ),
        (
            {"partition_dims": {"features/image": (1, 3, 1, 1)}},
            r"\['features/image'\]=\(1, 3, 1, 1\) cuts the tensor into 3 parts.*"
            "num_cores_per_replica=4",
        ),
        (
            {"partition_dims": {"features/image": (1, 1, 4, 1)}},
            r"\['features/image'\].*dimension 2 of the tensor has the size 6.*multiple of 4",
        ),
        (
            {
                "partition_dims": {"features/image": (1, 4, 1, 1)},
                "batch_axis": {"features/image": 2},
            },
            "dimension 1 of the tensor has the size 6",
        ),
        (
            {
                "partition_dims": {"features/image": (1, 4, 1, 1)},
                "batch_axis": {"features/image": 3},
            },
            "dimension 1 of the tensor has the size 6",
        ),
    ],
)
def test_settings_that_do_not_fit_the_input_are_an_error_naming_the_tensor(settings, message):
    # The batch is in front here; the user's image is [8, 6, 1] with the batch put in somewhere.
    with pytest.raises(ValueError, match=message):
        partition(**settings).check(spec(image=(4, 8, 6, 1)))


def test_labels_that_are_not_used_may_be_named():
    features, _ = spec(x=(4,))
    partition(batch_axis={"labels": 1}).check((features, None))


# With an Estimator


class ImageModel:
    """A model_fn for images [8, 6, 1] whose batch is at `axis`; remembers the shapes it saw."""

    def __init__(self, axis=0):
        self.axis = axis
        self.shapes = set()

    def __call__(self, features, labels, mode):
        import flax.linen as nn

        self.shapes.add(features["image"].shape)
        images = jnp.moveaxis(features["image"], self.axis, 0)
        outputs = nn.Conv(2, (3, 3))(images).mean(axis=(1, 2))
        outputs = nn.Dense(1)(outputs)[:, 0]
        if mode == est.ModeKeys.PREDICT:
            return est.EstimatorSpec(mode, predictions={"y": outputs})
        return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.sgd(0.1))


def run(model_fn, model_dir, data, *, devices, **settings):
    """Returns the losses of training, the loss of evaluation and the predictions."""
    losses = []

    class Losses(est.hooks.Hook):
        def after_loop(self, view):
            losses.extend(view.losses.tolist())

    estimator = est.Estimator(
        model_fn,
        model_dir,
        train_batch_size=4,
        eval_batch_size=4,
        predict_batch_size=4,
        config=est.RunConfig(devices=devices, log_step_count_steps=None, **settings),
    )
    features, labels = data
    estimator.train(lambda: (features, labels), hooks=[Losses()], max_steps=4)
    loss = estimator.evaluate(lambda: (features, labels))["loss"]
    return losses, loss, [float(result["y"]) for result in estimator.predict(lambda: features)]


def same(one, other):
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What the plain model gives on one device."""
    return run(
        ImageModel(),
        tmp_path_factory.mktemp("plain"),
        ({"image": IMAGES[:18]}, TARGETS[:18]),
        devices=DeviceConfig(devices=jax.devices()[:1]),
    )


def test_a_model_sees_the_batch_where_its_input_has_it(tmp_path, wanted):
    model_fn = ImageModel(axis=3)
    images = np.moveaxis(IMAGES[:18], 0, 3)

    results = run(
        model_fn,
        tmp_path,
        ({"image": images}, TARGETS[:18]),
        devices=DeviceConfig(devices=jax.devices()[:2]),
        input=InputPipelineConfig(batch_axis={"features/image": 3}),
    )

    assert model_fn.shapes == {(8, 6, 1, 4)}
    same(results, wanted)


@pytest.mark.parametrize("loop_shape", ["device_loop", "per_step"])
def test_spatial_partitioning_gives_the_same_numbers(tmp_path, wanted, loop_shape):
    results = run(
        ImageModel(axis=2),
        tmp_path,
        ({"image": np.moveaxis(IMAGES[:18], 0, 2)}, TARGETS[:18]),
        devices=DeviceConfig(devices=jax.devices()[:8], num_cores_per_replica=4),
        input=InputPipelineConfig(
            partition_dims={"features/image": (2, 2, 1, 1)}, batch_axis={"features/image": 2}
        ),
        loop_shape=loop_shape,
    )

    same(results, wanted)


@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_a_tensor_that_does_not_exist_is_refused_before_anything_is_compiled(
    tmp_path, nothing_compiled, call
):
    estimator = est.Estimator(
        ImageModel(),
        tmp_path,
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
        config=est.RunConfig(input=InputPipelineConfig(batch_axis={"features/img": 1})),
    )
    with pytest.raises(ValueError, match="batch_axis names 'features/img'"):
        results = getattr(estimator, call)(lambda: ({"image": IMAGES}, TARGETS))
        next(results)


def test_data_that_stays_whole_on_the_devices_cannot_be_cut(tmp_path):
    data = est.input_pipeline.Dataset.from_arrays(
        ({"image": IMAGES}, TARGETS), device_resident=True
    )
    config = est.RunConfig(
        input=InputPipelineConfig(partition_dims={"features/image": (1, 1, 1, 1)})
    )
    estimator = est.Estimator(ImageModel(), tmp_path, config, train_batch_size=8)
    with pytest.raises(ValueError, match=r"partition_dims.*Leave one of them out"):
        estimator.train(lambda: data)
