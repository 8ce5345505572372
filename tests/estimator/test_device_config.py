"""Settings of the devices that are refused when they are made."""

from __future__ import annotations

import pytest
from jax.sharding import PartitionSpec as P

import estimator as est


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"axis_names": "data"}, "three different names"),
        ({"axis_names": ("data", "data", "model")}, "three different names"),
        ({"shard_parameters": "tensor"}, "shard_parameters='tensor' is not known. Use 'fsdp'"),
        ({"shard_parameters": [(".*", "fsdp")]}, r"holds \('\.\*', 'fsdp'\).*PartitionSpec"),
        (
            {"shard_parameters": [(".*/kernel", P("tensor"))]},
            r"rule '\.\*/kernel' .* mesh axis 'tensor'. The mesh has the axes data, fsdp, model",
        ),
        (
            {"shard_parameters": [(".*/kernel", P("model", ("fsdp", "model")))]},
            "names the mesh axis 'model' twice",
        ),
        ({"logical_axis_rules": [("embed", "tensor")]}, "'embed' .* mesh axis 'tensor'"),
        ({"logical_axis_rules": ["embed"]}, "holds 'embed'"),
        ({"num_cores_per_replica": 0}, "num_cores_per_replica"),
        ({"fsdp_size": -1}, "fsdp_size"),
    ],
)
def test_what_cannot_be_meant_is_named(settings, words):
    with pytest.raises((TypeError, ValueError), match=words):
        est.DeviceConfig(**settings)


def test_rules_may_name_the_axes_as_they_are_called():
    names = ("replica", "zero", "tensor")
    est.DeviceConfig(axis_names=names, shard_parameters=[(".*", P(None, ("zero", "tensor")))])


def test_no_devices_at_all_is_an_error():
    with pytest.raises(ValueError, match="nothing to run on"):
        est.DeviceConfig(devices=[])


def test_an_unknown_replication_is_an_error_that_names_the_known_ones():
    with pytest.raises(
        ValueError, match=r"'everywhere' is not known\. Use one of global, per_replica"
    ):
        est.DeviceConfig(replication="everywhere")
