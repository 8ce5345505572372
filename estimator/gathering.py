"""Variables that are split over the fsdp axis, put together where they are computed with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from estimator.device_config import axes_of
from estimator.mesh import Placement
from estimator.sharding import variable_shardings


class Gathering:
    """Gathers what is split over the fsdp axis, just before it is used.

    That axis says where variables are kept; batches are split over it, too. Left to itself, the
    compiler may compute with the parts as they lie, and gather the whole batch to do so.

    Source: the order of work is that of ZeRO-3 (Rajbhandari et al., 2020): each array is
    gathered for the forward pass, dropped, gathered again for the backward pass, and its
    gradients are summed straight into the parts.

    Args:
      placement: the devices.
      annotated: what the model says of its own variables, by name; it may be filled later, before
        a step is traced.
    """

    def __init__(self, placement: Placement, annotated: Mapping[str, PartitionSpec]):
        self._placement = placement
        self._annotated = annotated

    @property
    def needed(self) -> bool:
        """Whether anything can be split over the fsdp axis."""
        return self._placement.mesh.shape[self._placement.fsdp_axis] > 1

    def whole(self, variables: Mapping[str, Any]) -> Any:
        """Returns variables by collection, none split over the fsdp axis."""
        if not self.needed:
            return variables
        kept = variable_shardings(self._placement, variables, self._annotated)
        return jax.tree.map(self._gathered, variables, kept)

    def dropping(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fn` with a gradient that gathers once more what `whole` has gathered in it,
        and does not keep that from the forward to the backward pass."""
        return jax.checkpoint(fn, policy=_may_be_kept) if self.needed else fn

    def _gathered(self, leaf: Any, kept: NamedSharding) -> Any:
        axis = self._placement.fsdp_axis
        named = [axes_of(entry) for entry in kept.spec]
        if not any(axis in axes for axes in named):
            return leaf
        rest = [tuple(name for name in axes if name != axis) for axes in named]
        whole = self._placement.sharding(PartitionSpec(*[axes or None for axes in rest]))
        return _moved(leaf, whole, kept)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _moved(leaf: jax.Array, whole: NamedSharding, kept: NamedSharding) -> jax.Array:
    return lax.with_sharding_constraint(leaf, whole)


def _moved_forward(leaf: Any, whole: NamedSharding, kept: NamedSharding) -> tuple[Any, None]:
    return lax.with_sharding_constraint(leaf, whole), None


def _moved_backward(
    whole: NamedSharding, kept: NamedSharding, _: None, gradient: Any
) -> tuple[Any]:
    return (lax.with_sharding_constraint(gradient, kept),)


_moved.defvjp(_moved_forward, _moved_backward)


def _may_be_kept(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name != "sharding_constraint"
