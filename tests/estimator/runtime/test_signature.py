from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from estimator.runtime import FeedError
from estimator.runtime.naming import FunctionNames
from estimator.runtime.signature import Signature


def step(state, batch):
    return state


def signature(*feeds):
    return Signature.of(FunctionNames(step), feeds)


def message(compiled_for, fed):
    mismatch = signature(*compiled_for).mismatch(fed)
    assert isinstance(mismatch, FeedError)
    return str(mismatch)


STATE = {"w": np.zeros((3, 4), np.float32)}
BATCH = {"image": np.zeros((8, 5), np.float32), "label": np.zeros(8, np.int32)}


def test_arrays_of_numpy_and_jax_and_abstract_ones_have_the_same_key():
    concrete = np.zeros((2, 3), np.float32)
    abstract = jax.ShapeDtypeStruct((2, 3), np.float32)
    keys = {signature(concrete).key, signature(jnp.asarray(concrete)).key, signature(abstract).key}
    assert len(keys) == 1


def test_64_bit_types_have_the_key_of_what_jax_makes_of_them():
    assert not jax.config.read("jax_enable_x64")
    wide = signature(np.zeros(3, np.float64)).key
    assert wide == signature(np.zeros(3, np.float32)).key
    assert wide == signature(jax.ShapeDtypeStruct((3,), np.float64)).key


def test_python_numbers_are_scalars():
    assert signature(3, 2.5).key == signature(np.int32(3), np.float32(2.5)).key


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((2, 4), np.float32),
        np.zeros((2, 3), np.int32),
        [np.zeros((2, 3), np.float32)],
        np.zeros((2, 3), np.float32).astype(jnp.bfloat16),
    ],
    ids=["shape", "dtype", "structure", "width"],
)
def test_feeds_that_differ_have_another_key(other):
    assert signature(other).key != signature(np.zeros((2, 3), np.float32)).key


def test_only_a_committed_array_asks_for_its_place():
    device = jax.devices()[1]
    somewhere = jnp.zeros(3)
    there = jax.device_put(somewhere, device)
    assert signature(there).key != signature(somewhere).key
    assert signature(there).specs[0].sharding == jax.sharding.SingleDeviceSharding(device)


def test_random_keys_are_feeds():
    spec = signature(jax.random.key(0)).specs[0]
    assert (str(spec), spec.nbytes) == ("key<fry>[]", 8)


def test_bytes_are_those_of_all_leaves():
    assert signature(STATE, BATCH).nbytes == 3 * 4 * 4 + 8 * 5 * 4 + 8 * 4


def test_feeds_that_fit_have_no_mismatch():
    assert signature(STATE, BATCH).mismatch((STATE, BATCH)) is None


def test_a_wrong_number_of_feeds_names_those_that_are_wanted():
    assert message((STATE, BATCH), (STATE,)) == "step takes 2 feeds (state, batch), got 1."


def test_a_missing_and_an_unknown_feed_are_named():
    fed = {"image": BATCH["image"], "labels": BATCH["label"]}
    text = message((STATE, BATCH), (STATE, fed))
    assert "missing 'batch/label'; unexpected 'batch/labels'" in text


def test_containers_of_another_kind_are_told_apart():
    array = BATCH["image"]
    text = message(([array],), ((array,),))
    assert "expected PyTreeDef(([*],)), got PyTreeDef(((*,),))" in text


def test_a_wrong_shape_names_the_feed_and_both_shapes():
    fed = {**BATCH, "image": np.zeros((8, 6), np.float32)}
    text = message((STATE, BATCH), (STATE, fed))
    assert "feed 'batch/image' is float32[8,6], expected float32[8,5]" in text
    assert "batch/label" not in text


def test_a_wrong_dtype_names_the_feed_and_both_dtypes():
    text = message((STATE, BATCH), (STATE, {**BATCH, "label": np.zeros(8, np.float32)}))
    assert "feed 'batch/label' is float32[8], expected int32[8]" in text


def test_of_many_wrong_feeds_five_are_named_and_the_rest_counted():
    wanted = {f"p{index}": np.zeros(2, np.float32) for index in range(9)}
    fed = {name: np.zeros(3, np.float32) for name in wanted}
    text = message((wanted,), (fed,))
    assert text.count("expected float32[2]") == 5
    assert "and 4 more" in text


def test_a_feed_that_is_no_array_is_named():
    with pytest.raises(FeedError, match=r"feed 'batch/label' of step is 'seven' of <class 'str'>"):
        signature(STATE, {**BATCH, "label": "seven"})


def test_a_tracer_is_refused():
    with pytest.raises(FeedError, match="feed 'state' of step is a tracer"):
        jax.jit(lambda x: signature(x).specs)(1.0)


def test_a_feed_on_another_device_than_compiled_for_is_named():
    here, there = (jax.device_put(np.zeros(3, np.float32), device) for device in jax.devices()[:2])
    text = message((here,), (there,))
    assert "feed 'state' lies on" in text and "jax.device_put" in text


def test_a_sharding_that_means_the_same_fits():
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    array = np.zeros((8, 2), np.float32)
    short = jax.device_put(array, NamedSharding(mesh, PartitionSpec("data")))
    long = jax.device_put(array, NamedSharding(mesh, PartitionSpec("data", None)))
    assert signature(short).mismatch((long,)) is None


def test_abstract_feeds_have_the_signature_they_were_made_from():
    made = signature(STATE, jax.device_put(BATCH, jax.devices()[2]))
    assert signature(*made.abstract()).key == made.key
