"""Where batches and variables lie on the devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from estimator.device_config import DeviceConfig
from estimator.mesh import Placement


def placement(devices):
    return Placement.make(DeviceConfig(devices=jax.devices()[:devices]))


def test_all_devices_are_used_unless_some_are_named():
    assert Placement.make(DeviceConfig()).num_replicas == len(jax.devices()) == 8
    assert placement(3).num_replicas == 3


def test_variables_are_whole_on_every_device():
    array = jax.device_put(np.arange(5.0), placement(4).replicated)

    assert len(array.addressable_shards) == 4
    assert all(shard.data.shape == (5,) for shard in array.addressable_shards)


def test_stacked_batches_are_split_by_example():
    array = jax.device_put(np.zeros((3, 8, 2)), placement(4).stacked_batches)

    assert [shard.data.shape for shard in array.addressable_shards] == [(3, 2, 2)] * 4


@pytest.mark.parametrize("batch_size, rows", [(8, 2), (4, 1), (3, 3), (1, 1), (6, 6)])
def test_a_batch_that_does_not_divide_is_whole_on_every_device(batch_size, rows):
    place = placement(4)

    array = jax.device_put(np.zeros((2, batch_size)), place.for_batch_size(batch_size))

    assert {shard.data.shape for shard in array.addressable_shards} == {(2, rows)}


@pytest.mark.parametrize("devices, batch_size", [(1, 1), (1, 7), (8, 8), (8, 64), (3, 9)])
def test_a_batch_size_that_divides_is_accepted(devices, batch_size):
    assert placement(devices).check_batch_size("train_batch_size", batch_size) == batch_size


@pytest.mark.parametrize(
    "devices, batch_size, use",
    [(8, 20, "16 or 24"), (8, 3, "8"), (4, 5, "4 or 8"), (3, 100, "99 or 102")],
)
def test_a_batch_size_that_does_not_divide_names_the_nearest(devices, batch_size, use):
    with pytest.raises(ValueError) as caught:
        placement(devices).check_batch_size("eval_batch_size", batch_size)

    assert str(caught.value) == (
        f"eval_batch_size={batch_size} does not divide over the {devices} replicas of mesh axis "
        f"'data'. Use {use}."
    )


def sharded(devices=8, **settings):
    return Placement.make(DeviceConfig(devices=jax.devices()[:devices], **settings))


def test_a_replica_is_as_many_devices_as_are_asked_for():
    place = sharded(num_cores_per_replica=2, fsdp_size=2)

    assert dict(place.mesh.shape) == {"data": 2, "fsdp": 2, "model": 2}
    assert place.num_replicas == 4
    assert place.replica_axes == ("data", "fsdp")


def test_batches_are_split_over_the_replicas_and_whole_within_each():
    place = sharded(num_cores_per_replica=2, fsdp_size=2)

    array = jax.device_put(np.arange(8.0)[None], place.for_batch_size(8))

    rows = [shard.data[0, 0].item() for shard in array.addressable_shards]
    assert [shard.data.shape for shard in array.addressable_shards] == [(1, 2)] * 8
    assert rows == [0, 0, 2, 2, 4, 4, 6, 6]


def test_automatic_sharding_spreads_the_parameters_over_all_replicas_unless_told():
    assert dict(sharded(shard_parameters="fsdp").mesh.shape)["fsdp"] == 8
    assert dict(sharded(shard_parameters="fsdp", fsdp_size=4).mesh.shape)["fsdp"] == 4
    assert dict(sharded().mesh.shape)["fsdp"] == 1


def test_the_axes_have_the_names_that_they_are_given():
    place = sharded(num_cores_per_replica=2, axis_names=("replica", "zero", "tensor"))

    assert dict(place.mesh.shape) == {"replica": 4, "zero": 1, "tensor": 2}
    with pytest.raises(ValueError, match="mesh axis 'replica'"):
        place.check_batch_size("train_batch_size", 5)


def test_one_process_holds_all_replicas_and_all_rows():
    place = sharded(num_cores_per_replica=2)

    assert place.local_replicas == (0, 1, 2, 3)
    np.testing.assert_array_equal(place.local_rows(8), np.arange(8))
    np.testing.assert_array_equal(place.local_rows(3), np.arange(3))


@pytest.mark.parametrize(
    "dims, shape", [((1, 2, 2, 1), (1, 2, 4, 3, 5)), ((1, 4, 1, 1), (1, 2, 2, 6, 5))]
)
def test_an_image_is_cut_within_a_replica(dims, shape):
    place = sharded(num_cores_per_replica=4)

    array = jax.device_put(np.zeros((1, 4, 8, 6, 5)), place.for_batch_size(4, dims))
    alone = jax.device_put(np.zeros((1, 3, 8, 6, 5)), place.for_batch_size(3, dims))

    assert {shard.data.shape for shard in array.addressable_shards} == {shape}
    assert {shard.data.shape for shard in alone.addressable_shards} == {(1, 3, *shape[2:])}


def test_arrays_that_are_cut_and_arrays_that_are_not_go_into_one_program():
    place = sharded(num_cores_per_replica=4)
    image = jax.device_put(np.ones((1, 4, 8, 6)), place.for_batch_size(4, (1, 2, 2)))
    weight = jax.device_put(np.full((1, 4, 1, 1), 2.0), place.for_batch_size(4))

    assert jax.jit(lambda x, w: (x * w).sum())(image, weight) == 2 * 4 * 8 * 6


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"num_cores_per_replica": 3}, "num_cores_per_replica=3 does not divide the 8 devices"),
        ({"fsdp_size": 3}, "fsdp_size=3 does not divide the 8 replicas"),
        ({"num_cores_per_replica": 4, "fsdp_size": 4}, "the 2 replicas .8 devices, 4 in each"),
    ],
)
def test_sizes_that_do_not_divide_the_devices_name_those_that_do(settings, words):
    with pytest.raises(ValueError, match=rf"{words}.*Use one of 1, 2"):
        sharded(**settings)


def test_a_batch_that_is_cut_into_microbatches_has_to_divide_into_them_too():
    assert placement(4).check_batch_size("train_batch_size", 24, parts=3) == 24
    with pytest.raises(ValueError, match=r"4 replicas .* with 3 microbatches each. Use 24 or 36"):
        placement(4).check_batch_size("train_batch_size", 28, parts=3)
