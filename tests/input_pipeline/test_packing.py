"""Many small arrays travel as few, and come back as they were."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from input_pipeline import Packing

CAPACITY, ROWS = 5, 6


def array(dtype, *shape, seed=0):
    values = np.random.default_rng(seed).integers(0, 100, (CAPACITY, ROWS, *shape))
    return values.astype(dtype)


def columns(count, dtype=np.float32, *shape):
    return {f"{dtype.__name__}{k:02d}": array(dtype, *shape, seed=k) for k in range(count)}


def packing_of(batches) -> Packing:
    packing = Packing.of(batches)
    assert packing is not None
    return packing


MIXED = (
    {
        **columns(20),
        **columns(9, np.int32),
        **columns(8, np.float16, 3),
        "few": array(np.uint8),
        "empty": columns(8, np.int8, 0),
        "image": array(np.float32, 8, 8),
    },
    array(np.float32),
)


def test_arrays_of_one_dtype_and_shape_travel_as_one():
    sent = packing_of(MIXED).pack(MIXED)
    assert sorted((str(leaf.dtype), leaf.shape) for leaf in sent) == [
        ("float16", (8 * CAPACITY, ROWS, 3)),
        ("float32", (CAPACITY, ROWS, 8, 8)),
        ("float32", (21 * CAPACITY, ROWS)),  # the labels are like 20 of the features
        ("int32", (9 * CAPACITY, ROWS)),
        ("int8", (8 * CAPACITY, ROWS, 0)),
        ("uint8", (CAPACITY, ROWS)),
    ]


@pytest.mark.parametrize("index", range(CAPACITY))
def test_each_batch_comes_out_as_it_was(index):
    packing = packing_of(MIXED)
    batch = jax.jit(packing.batch)(packing.pack(MIXED), index)

    wanted = jax.tree.map(lambda leaf: leaf[index], MIXED)
    assert jax.tree.structure(batch) == jax.tree.structure(wanted)
    for got, leaf in zip(jax.tree.leaves(batch), jax.tree.leaves(wanted), strict=True):
        assert got.dtype == leaf.dtype
        np.testing.assert_array_equal(got, leaf)


@pytest.mark.parametrize(
    "batches",
    [
        columns(7),
        {**columns(5), **columns(5, np.int32)},
        columns(9, np.float32, 1100),  # as large as that, a transfer of its own costs nothing
    ],
)
def test_few_large_or_different_arrays_stay_as_they_are(batches):
    assert Packing.of(batches) is None


def test_stacks_of_one_kind_are_packed_alike():
    again = jax.tree.map(np.zeros_like, MIXED)
    assert Packing.of(again) == Packing.of(MIXED)
    assert hash(Packing.of(again)) == hash(Packing.of(MIXED))
