"""How variables, and what an optimizer keeps of each of them, are split over the devices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from estimator.annotations import name_of
from estimator.device_config import AUTOMATIC, axes_of, check_axes
from estimator.mesh import Placement
from estimator.state import TrainState


def variable_shardings(
    placement: Placement, variables: Any, annotated: Mapping[str, PartitionSpec]
) -> Any:
    """Returns where each variable lies, as `DeviceConfig.shard_parameters` says.

    Args:
      placement: the devices.
      variables: pytree of shapes and dtypes, by collection.
      annotated: what the model says of its own variables, by name.

    Returns:
      The same pytree of `NamedSharding`s.

    Raises:
      ValueError: a spec does not fit the variable that it is for.
    """

    def sharding(path: Any, leaf: Any) -> NamedSharding:
        name = name_of(path)
        spec = _asked_for(placement, name, leaf)
        if spec is None:
            spec = annotated.get(name)
        if spec is None:
            spec = _automatic(placement, leaf)
        _check_fit(placement, name, leaf, spec)
        return placement.sharding(spec)

    return jax.tree_util.tree_map_with_path(sharding, variables)


def state_shardings(
    placement: Placement, state: TrainState, annotated: Mapping[str, PartitionSpec]
) -> TrainState:
    """Returns where each array of a train state lies: what the optimizer keeps of a parameter
    lies as the parameter does.

    Raises:
      ValueError: a spec does not fit its variable, or a rule fits none.
    """
    _check_all_rules_used(placement, state.variables)
    step: Any = placement.replicated
    model_state = variable_shardings(placement, state.variables, annotated)
    params = model_state.pop("params")
    return TrainState(
        step=step,
        params=params,
        model_state=model_state,
        opt_state=_following(placement, state.opt_state, state.params, params),
    )


def placed(shapes: Any, shardings: Any) -> Any:
    """Returns `shapes` as `jax.ShapeDtypeStruct`s with `shardings`."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def _asked_for(placement: Placement, name: str, leaf: Any) -> PartitionSpec | None:
    given = placement.config.shard_parameters
    if given is None or isinstance(given, str):
        return None
    if not callable(given):
        return next((spec for pattern, spec in given if re.fullmatch(pattern, name)), None)
    spec = given(name, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    if spec is not None and not isinstance(spec, PartitionSpec):
        raise TypeError(
            f"The function shard_parameters returned {spec!r} for {name}. Return a "
            "jax.sharding.PartitionSpec, or None."
        )
    return spec


def _automatic(placement: Placement, leaf: Any) -> PartitionSpec:
    config, axis = placement.config, placement.fsdp_axis
    parts = placement.mesh.shape[axis]
    if config.shard_parameters != AUTOMATIC or parts == 1 or leaf.size < config.fsdp_min_elements:
        return PartitionSpec()
    largest = max((size for size in leaf.shape if size % parts == 0), default=None)
    if largest is None:
        return PartitionSpec()
    return PartitionSpec(*[None] * leaf.shape.index(largest), axis)


def _check_fit(placement: Placement, name: str, leaf: Any, spec: PartitionSpec) -> None:
    what = f"The PartitionSpec{tuple(spec)} of {name} {list(leaf.shape)}"
    check_axes(what, spec, placement.mesh.axis_names)
    if len(spec) > len(leaf.shape):
        raise ValueError(
            f"{what} has {len(spec)} entries for {len(leaf.shape)} dimensions. Give one for each "
            "dimension, or fewer."
        )
    for index, (size, entry) in enumerate(zip(leaf.shape, spec, strict=False)):
        axes = axes_of(entry)
        parts = math.prod(placement.mesh.shape[axis] for axis in axes)
        if size % parts:
            raise ValueError(
                f"{what} splits dimension {index}, of {size}, into {parts} parts, the size of mesh "
                f"{' x '.join(map(repr, axes))}. Leave it whole (None), or make it a multiple of "
                f"{parts}."
            )


def _check_all_rules_used(placement: Placement, variables: Any) -> None:
    rules = placement.config.shard_parameters
    if rules is None or isinstance(rules, str) or callable(rules):
        return
    names = [name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(variables)]
    for pattern, _ in rules:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise ValueError(
                f"The rule {pattern!r} of shard_parameters fits no variable. A pattern has to fit "
                f"a whole name; there are {', '.join(names)}."
            )


def _following(placement: Placement, opt_state: Any, params: Any, shardings: Any) -> Any:
    """Returns where the optimizer's arrays lie: one that ends in the path of a parameter, and has
    its shape, is a copy of it in some way (a moment, an average), and lies with it. The others
    are whole everywhere."""
    paths = [_keys(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
    known = dict(zip(paths, zip(shapes, jax.tree.leaves(shardings), strict=True), strict=True))

    def sharding(path: Any, leaf: Any) -> NamedSharding:
        keys = _keys(path)
        for start in range(len(keys) + 1):
            shape, found = known.get(keys[start:], (None, None))
            if found is not None and shape == leaf.shape:
                return found
        return placement.replicated

    return jax.tree_util.tree_map_with_path(sharding, opt_state)


def _keys(path: Any) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
