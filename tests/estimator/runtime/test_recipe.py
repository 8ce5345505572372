from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from estimator.runtime import FeedError
from estimator.runtime.recipe import Recipe


def step(state, batch):
    return {"state": state + batch, "loss": jnp.sum(state)}


MESH = Mesh(np.asarray(jax.devices()), ("data",))
REPLICATED = NamedSharding(MESH, PartitionSpec())


class Counter:
    def add(self, x):
        return x + 1


def test_equal_options_have_equal_keys():
    one, other = (
        Recipe(step, fetches=["loss"], donate=[0], out_shardings=[REPLICATED]) for _ in range(2)
    )
    assert one.key == other.key and hash(one.key) == hash(other.key)
    assert Recipe(step, donate=0).key == Recipe(step, donate=(0,)).key


@pytest.mark.parametrize(
    "options", [{"fetches": "loss"}, {"donate": 0}, {"out_shardings": REPLICATED}]
)
def test_every_option_makes_another_key(options):
    assert Recipe(step, **options).key != Recipe(step).key


def test_a_bound_method_is_the_same_function_each_time_it_is_read():
    counter = Counter()
    assert Recipe(counter.add).key == Recipe(counter.add).key
    assert Recipe(counter.add).key != Recipe(Counter().add).key


def test_partials_are_functions_of_their_own():
    assert Recipe(functools.partial(step, 1)).key != Recipe(functools.partial(step, 1)).key


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="fn=3 must be a function"):
        Recipe(3)  # pyright: ignore[reportArgumentType]


def test_a_function_without_a_hash_is_refused():
    class Unhashable:
        __hash__ = None  # pyright: ignore[reportAssignmentType]

        def __call__(self, x):
            return x

    with pytest.raises(TypeError, match="has no hash"):
        Recipe(Unhashable())


@pytest.mark.parametrize(
    "options", [{"fetches": "loss"}, {"donate": 0}, {"out_shardings": REPLICATED}]
)
def test_a_jitted_function_takes_no_further_options(options):
    with pytest.raises(ValueError, match=r"step was made by jax\.jit with options of its own"):
        Recipe(jax.jit(step), **options)


def test_a_jitted_function_keeps_its_options():
    recipe = Recipe(jax.jit(step, donate_argnums=0))
    feeds = (np.ones(3, np.float32), np.ones(3, np.float32))
    compiled, _ = recipe.compile(recipe.signature(feeds), None)
    donated = [info.donated for info in jax.tree.leaves(compiled.args_info)]
    assert donated == [True, False]


def test_feeds_on_devices_that_are_not_to_be_used_are_named():
    recipe = Recipe(step)
    stray = jax.device_put(np.ones(3, np.float32), jax.devices()[5])
    signature = recipe.signature((np.ones(3, np.float32), stray))
    with pytest.raises(FeedError, match=r"feed 'batch' of step lies on .*id=5"):
        recipe.check_devices(signature, jax.devices()[:4])
    recipe.check_devices(signature, jax.devices())


def test_out_shardings_on_devices_that_are_not_to_be_used_are_named():
    there = SingleDeviceSharding(jax.devices()[6])
    recipe = Recipe(step, out_shardings={"state": there, "loss": None})
    with pytest.raises(ValueError, match=r"out_shardings of step name .*id=6"):
        recipe.check_devices(recipe.signature((1.0, 2.0)), jax.devices()[:4])
