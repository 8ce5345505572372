"""Where batches and variables lie on the devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from estimator.config import DeviceConfig
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
