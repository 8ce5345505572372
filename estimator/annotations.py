"""The partitioning metadata that flax models put on their variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
from flax.core import meta
from jax.sharding import PartitionSpec

LogicalRules = Sequence[tuple[str, str | tuple[str, ...] | None]]
"""(logical name, mesh axis or axes)."""


def name_of(path: Any) -> str:
    """Returns the name of a leaf, such as `params/Dense_0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def unboxed(variables: Any, rules: LogicalRules) -> tuple[Any, dict[str, PartitionSpec]]:
    """Takes the boxes off that `nn.with_partitioning` and its kin put around variables.

    Args:
      variables: pytree, with or without boxes.
      rules: for boxes with logical names; one without a rule is not split.

    Returns:
      The variables, and how those that had a box are split, by name.
    """
    leaves = jax.tree_util.tree_leaves_with_path(variables, is_leaf=_is_box)
    specs = {name_of(path): _spec(box, rules) for path, box in leaves if _is_box(box)}
    return meta.unbox(variables), {name: spec for name, spec in specs.items() if spec is not None}


def boxed(state: Any) -> Any:
    """Returns the values of an `nnx.State` as a plain dict, those of variables with an
    `out_sharding` in boxes as linen's."""
    from flax import nnx

    def value(variable: Any) -> Any:
        metadata = variable.get_metadata()
        names = metadata.get("out_sharding")
        if not names:
            return variable.get_value()
        rules = metadata.get("sharding_rules")
        return nn.LogicallyPartitioned(variable.get_value(), tuple(names), rules=rules)

    is_variable = nnx.Variable
    boxes = jax.tree.map(value, state, is_leaf=lambda leaf: isinstance(leaf, is_variable))
    return nnx.to_pure_dict(boxes)


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, meta.AxisMetadata)


def _spec(box: Any, rules: LogicalRules) -> PartitionSpec | None:
    if isinstance(box, nn.LogicallyPartitioned):
        return nn.logical_to_mesh_axes(box.names, (*rules, *(box.rules or ())))
    if isinstance(box, nn.Partitioned):
        return box.get_partition_spec()
    return None  # metadata of another kind
