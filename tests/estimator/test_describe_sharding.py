"""The table of where the variables of a model lie."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import estimator as est
from tests import fakes

RULES = [(".*/Dense_0/kernel", P(None, "model"))]


@pytest.fixture
def estimator(tmp_path):
    devices = est.DeviceConfig(num_cores_per_replica=4, shard_parameters=RULES)
    return est.Estimator(
        fakes.mlp,
        tmp_path,
        fakes.config(devices=devices),
        params={"optimizer": optax.sgd(0.1, momentum=0.9)},
        train_batch_size=8,
    )


def test_each_array_has_a_row(estimator):
    table = est.describe_sharding(estimator, fakes.numbered(8))

    rows = {row.name: row for row in table.rows}
    assert table.mesh_shape == {"data": 2, "fsdp": 1, "model": 4}
    kernel = rows["params/Dense_0/kernel"]
    assert (kernel.dtype, kernel.shape, kernel.spec) == ("float32", (4, 8), P(None, "model"))
    assert kernel.bytes_per_device == 4 * 8 * 4 // 4
    assert rows["opt_state/0/trace/Dense_0/kernel"].bytes_per_device == 4 * 8 * 4 // 4
    whole = 8 + 8 + 1  # both biases and the second kernel
    assert table.bytes_per_device == 4 + 2 * 4 * (whole + 8)  # the step, parameters, momentum


def test_shapes_will_do_for_a_batch(estimator):
    shapes = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), fakes.numbered(8)
    )

    assert est.describe_sharding(estimator, shapes) == est.describe_sharding(
        estimator, fakes.numbered(8)
    )


def test_it_prints_as_a_table(estimator):
    lines = str(est.describe_sharding(estimator, fakes.numbered(8))).splitlines()

    assert lines[0] == "mesh: data=2 x fsdp=1 x model=4"
    assert lines[1].split() == ["variable", "shape", "spec", "bytes", "per", "device"]
    (row,) = [line for line in lines if line.startswith("params/Dense_0/kernel")]
    assert row.split() == ["params/Dense_0/kernel", "float32[4,", "8]", "P(None,", "'model')", "32"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_a_batch_without_features_is_an_error(estimator):
    with pytest.raises(ValueError, match=r"features .* hold no arrays"):
        est.describe_sharding(estimator, ({}, np.zeros(8)))


def test_a_batch_has_to_be_a_pair(estimator):
    with pytest.raises(TypeError, match=r"batch must be a pair .features, labels., got dict"):
        est.describe_sharding(estimator, fakes.numbered(8)[0])
