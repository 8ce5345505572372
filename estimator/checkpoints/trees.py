"""Trees of arrays by name, and random keys as the bits that are stored of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax


def leaf_name(path: Any) -> str:
    """Returns the name of the leaf at `path`, such as `params/Dense_0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named(tree: Any) -> dict[str, Any]:
    """Returns the leaves of `tree` by name."""
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def without_keys(tree: Any) -> Any:
    """Returns the tree with the bits of random keys in their place: what is stored of them."""

    def plain(leaf: Any) -> Any:
        if not is_key(leaf):
            return leaf
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.random.key_data(leaf)
        bits = jax.eval_shape(jax.random.key_data, leaf)
        return jax.ShapeDtypeStruct(bits.shape, bits.dtype, sharding=leaf.sharding)

    return jax.tree.map(plain, tree)


def with_keys(abstract: Any, stored: Any) -> Any:
    """Returns `stored` with random keys in the places that have them in `abstract`."""

    def with_key(leaf: Any, data: Any) -> Any:
        if not is_key(leaf):
            return data
        impl = jax.random.key_impl(jax.numpy.empty((), leaf.dtype))
        return jax.random.wrap_key_data(data, impl=impl)

    return jax.tree.map(with_key, abstract, stored)


def is_key(leaf: Any) -> bool:
    """Says whether a leaf holds random keys."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def with_leaves(tree: Any, leaves: Mapping[str, Any]) -> Any:
    """Returns `tree` with `leaves` in the places that have their names."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaves.get(leaf_name(path), leaf), tree
    )
