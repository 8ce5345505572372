"""Variables lose their classes, and nothing else, on the way to disk and back."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimator.export.tensor_spec import TensorSpec
from estimator.export.variables import HostVariables, restore, save

Layer = collections.namedtuple("Layer", ["kernel", "bias"])


def round_trip(path, variables):
    host = HostVariables.fetch(variables)
    save(path / "variables", host.arrays)
    restored = restore(path / "variables", host.specs)
    assert list(restored) == list(host.arrays)
    return host.unflatten(restored)


def test_arrays_of_every_kind_come_back_bit_for_bit(tmp_path):
    variables = {
        "layers": [Layer(jnp.arange(6.0).reshape(2, 3), jnp.ones(3, jnp.bfloat16))],
        "a/b.c": np.array([True, False]),
        "step": np.int32(7),
        "empty": np.zeros((0, 4), np.float16),
        "scalar": jnp.float32(0.1),
    }
    restored = round_trip(tmp_path, variables)
    assert jax.tree.structure(restored) == jax.tree.structure(variables)
    for got, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(variables), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_random_keys_come_back_as_keys(tmp_path):
    key = jax.random.key(3, impl="rbg")
    restored = round_trip(tmp_path, {"dropout": key})["dropout"]
    np.testing.assert_array_equal(jax.random.uniform(restored, (4,)), jax.random.uniform(key, (4,)))


@pytest.mark.parametrize("variables", [{}, None, {"empty": np.zeros((3, 0), np.float32)}])
def test_a_model_without_numbers_in_its_variables_is_saved_too(tmp_path, variables):
    restored = round_trip(tmp_path, variables)
    assert jax.tree.map(np.shape, restored) == jax.tree.map(np.shape, variables)


def test_python_numbers_and_64_bit_arrays_become_what_jax_makes_of_them():
    variables = {"a": 0.5, "b": np.zeros(2), "c": np.arange(2), "d": 3}
    specs = HostVariables.fetch(variables).specs
    assert {name: spec.dtype for name, spec in specs.items()} == {
        name: jnp.asarray(value).dtype for name, value in variables.items()
    }


def test_arrays_spread_over_the_devices_are_fetched_whole():
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows = np.arange(4.0 * jax.device_count(), dtype=np.float32)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    arrays = HostVariables.fetch({"w": jax.device_put(rows, sharding)}).arrays
    np.testing.assert_array_equal(arrays["w"], rows)


def test_a_variable_that_is_no_number_is_refused_by_name():
    with pytest.raises(TypeError, match="Variable 'layer/name' is of type str"):
        HostVariables.fetch({"layer": {"name": "dense"}})


def test_variables_that_are_not_those_of_the_manifest_are_refused_by_name(tmp_path):
    save(tmp_path / "variables", {"w": np.ones((2, 3), np.float32)})
    with pytest.raises(ValueError, match=r"'w' is float32\[2, 3\].* says float32\[3, 2\]"):
        restore(tmp_path / "variables", {"w": TensorSpec((3, 2), "float32")})
    with pytest.raises(ValueError, match=r"'b' is absent"):
        restore(tmp_path / "variables", {"b": TensorSpec((3,), "float32")})
