"""Tensor specs: what they hold, and how the leaves of a tree are named."""

import collections
import json

import jax.numpy as jnp
import numpy as np
import pytest

from estimator.export.tensor_spec import TensorSpec, leaf_names

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_a_spec_reads_as_dtype_and_dimensions():
    assert str(TensorSpec((None, 28, 28), np.float32)) == "float32[batch, 28, 28]"
    assert str(TensorSpec((), "bool")) == "bool[]"


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8", "bool", "complex64"])
def test_a_spec_survives_json(dtype):
    spec = TensorSpec((None, 3), dtype)
    assert TensorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_the_zeros_of_a_spec_with_a_batch_have_no_rows():
    zeros = TensorSpec((None, 3), jnp.bfloat16).zeros()
    assert (zeros.shape, zeros.dtype) == ((0, 3), jnp.bfloat16)


@pytest.mark.parametrize("shape", [(None, None), (2, None), (-1, 3), (3, "x"), (1.5,), (True,)])
def test_a_size_that_is_no_int_is_refused(shape):
    with pytest.raises(ValueError, match="Only the first dimension may be None"):
        TensorSpec(shape, "float32")


def test_leaves_are_named_by_their_path_in_the_order_of_the_tree():
    tree = {"b": [1, Pair(2, 3)], "a": {"c": 4}}
    names = leaf_names(tree, what="features", root="input")
    assert list(names.items()) == [("a/c", 4), ("b/0", 1), ("b/1/left", 2), ("b/1/right", 3)]


def test_a_lone_leaf_gets_the_name_of_the_root():
    assert leaf_names(5, what="features", root="input") == {"input": 5}


def test_two_leaves_of_one_name_are_refused():
    with pytest.raises(ValueError, match="features hold two arrays that are both called 'a/b'"):
        leaf_names({"a/b": 1, "a": {"b": 2}}, what="features", root="input")
