"""What an exported model is fed with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from estimator.export.tensor_spec import TensorSpec, is_numeric, leaf_names, narrow

ONLY_INPUT = "input"
"""What features that are one array are called."""


@dataclasses.dataclass(frozen=True, eq=False)
class ServingInput:
    """The inputs of an exported model; made by `serving_input`.

    Attributes:
      specs: name -> spec; the first dimension of every one is the batch, None.
      treedef: a JAX treedef, how the named inputs make up the features.
      preprocess: turns features as they are received into those that model_fn takes.
    """

    specs: Mapping[str, TensorSpec]
    treedef: Any
    preprocess: Callable[[Any], Any] | None = None

    def features(self, feeds: Mapping[str, Any]) -> Any:
        """Returns the features for model_fn made from arrays by name. Runs inside a trace."""
        features = self.treedef.unflatten([feeds[name] for name in self.specs])
        return features if self.preprocess is None else self.preprocess(features)


def serving_input(features: Any, preprocess: Callable[[Any], Any] | None = None) -> ServingInput:
    """Describes what an exported model is fed with.

    The first dimension of every array is the batch. It may have any size here: the exported
    model takes every batch size. The other dimensions are fixed.

    Args:
      features: pytree, mostly a dict, of example arrays `[batch, ...]` or of anything with a
        shape and a dtype: `TensorSpec`, `jax.ShapeDtypeStruct`. 64-bit types become what JAX
        makes of them.
      preprocess: `features -> features`, JAX operations that become part of the exported model,
        such as `lambda f: {"image": f["image"] / 255}`.

    Raises:
      TypeError: a leaf that is no array, or one of strings or objects.
      ValueError: no leaves, a leaf without a batch dimension, or two of the same name.
    """
    if preprocess is not None and not callable(preprocess):
        raise TypeError(f"preprocess must be a function, got {type(preprocess).__name__}.")
    leaves = leaf_names(features, what="features", root=ONLY_INPUT)
    if not leaves:
        raise ValueError("features holds no arrays. Give the model at least one input.")
    specs = {name: _spec(name, leaf) for name, leaf in leaves.items()}
    return ServingInput(specs, jax.tree.structure(features), preprocess)


def _spec(name: str, leaf: Any) -> TensorSpec:
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise TypeError(
            f"Feature {name!r} is of type {type(leaf).__name__}; expected an array "
            "[batch, ...], or a TensorSpec or jax.ShapeDtypeStruct that describes one."
        )
    if not is_numeric(leaf.dtype):
        raise TypeError(
            f"Feature {name!r} has dtype {leaf.dtype}, which JAX does not compute with. "
            "Encode it as numbers before the model, e.g. as the ids of a vocabulary."
        )
    if len(leaf.shape) == 0:
        raise ValueError(
            f"Feature {name!r} is a scalar; expected an array [batch, ...], since every feature "
            "has a row for every example."
        )
    return TensorSpec((None, *leaf.shape[1:]), narrow(leaf.dtype))
