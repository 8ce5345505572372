"""The arrays of a checkpoint: what there are, and their values, by name."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from etils import epath

from estimator.checkpoints.layout import damage_named, existing
from estimator.checkpoints.quiet import hush_orbax
from estimator.checkpoints.trees import leaf_name, named


def variable_shapes(path: str | os.PathLike[str]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shape and dtype of the variables in a checkpoint by name. Needs no device.

    Args:
      path: of the checkpoint, or of a model_dir, whose newest one is read.

    Raises:
      FileNotFoundError: there is no checkpoint.
    """
    return shapes(existing(path) / "variables")


def load_variables(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Returns the variables of a checkpoint by name, whole, however they were sharded.

    Args:
      path: of the checkpoint, or of a model_dir, whose newest one is read.

    Raises:
      FileNotFoundError: there is no checkpoint.
    """
    part = existing(path) / "variables"
    return named(load(part, metadata(part)))


def load_variable(path: str | os.PathLike[str], name: str) -> np.ndarray:
    """Returns one variable of a checkpoint, whole, however it was sharded.

    Args:
      path: of the checkpoint, or of a model_dir, whose newest one is read.
      name: such as `params/Dense_0/kernel`.

    Raises:
      FileNotFoundError: there is no checkpoint.
      KeyError: it has no such variable; lists those that it has.
    """
    import orbax.checkpoint as ocp

    part = existing(path) / "variables"
    tree = metadata(part)
    if name not in named(tree):
        raise KeyError(f"{part.parent} has no variable {name!r}. It has {sorted(named(tree))}.")
    only = jax.tree_util.tree_map_with_path(
        lambda key, leaf: leaf if leaf_name(key) == name else ocp.PLACEHOLDER, tree
    )
    return named(load(part, only))[name]


def shapes(part: epath.Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shape and dtype of the arrays in one part of a checkpoint by name."""
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for name, leaf in named(metadata(part)).items()
    }


def metadata(part: epath.Path) -> Any:
    """Returns the tree of one part of a checkpoint, with orbax's metadata for its arrays."""
    with damage_named(part.parent):
        return _handler().metadata(part).tree


def restore(part: epath.Path, item: Any, restore_args: Any) -> Any:
    """Returns the arrays of `item` from one part of a checkpoint."""
    import orbax.checkpoint as ocp

    with damage_named(part.parent):
        return _handler().restore(
            part,
            args=ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True),
        )


def _handler() -> Any:
    import orbax.checkpoint as ocp

    hush_orbax()
    # Left to find out about pinned memory by itself, the handler would start the devices.
    reader = ocp.BasePyTreeCheckpointHandler(enable_pinned_host_transfer=False)
    return ocp.PyTreeCheckpointHandler(handler_impl=reader)


def load(part: epath.Path, tree: Any) -> Any:
    """Returns the arrays of `tree` from one part of a checkpoint, whole, in numpy."""
    import orbax.checkpoint as ocp

    if not jax.tree.leaves(tree):
        return tree  # orbax refuses to restore nothing
    whole = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return restore(part, tree, whole)
