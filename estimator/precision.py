"""Computing in a narrower dtype than that of the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from estimator.spec import EstimatorSpec


def cast(tree: Any, dtype: Any) -> Any:
    """Returns the floating point arrays of `tree` in `dtype`, and the others as they are."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


def narrowed(variables: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    """Returns variables with the parameters in `dtype`; the others, such as batch statistics,
    are sums over many steps, which a narrow dtype would lose."""
    return {**variables, "params": cast(variables.get("params", {}), dtype)}


def like(state: Any, before: Mapping[str, Any]) -> Any:
    """Returns the collections of `state` in the dtypes that they had in `before`."""
    return {
        name: jax.tree.map(lambda new, old: new.astype(old.dtype), tree, before[name])
        for name, tree in state.items()
    }


def widened_spec(spec: EstimatorSpec) -> EstimatorSpec:
    """Returns the spec with all that leaves the device in float32 at least."""
    host_call, eval_metrics = (
        pair and (pair[0], jax.tree.map(_widened, pair[1]))
        for pair in (spec.host_call, spec.eval_metrics)
    )
    return dataclasses.replace(
        spec,
        loss=jax.tree.map(_widened, spec.loss),
        predictions=jax.tree.map(_widened, spec.predictions),
        metrics=jax.tree.map(_widened, spec.metrics),
        host_call=host_call,
        eval_metrics=eval_metrics,
        export_outputs=spec.export_outputs
        and {name: output.converted(_widened) for name, output in spec.export_outputs.items()},
    )


def _widened(leaf: Any) -> Any:
    narrow = getattr(leaf, "dtype", None) in (jnp.bfloat16, jnp.float16)
    return leaf.astype(jnp.float32) if narrow else leaf
