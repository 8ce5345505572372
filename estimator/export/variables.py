"""Variables of a model as arrays by name, to disk and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from estimator.export.tensor_spec import TensorSpec, is_numeric, leaf_names, narrow


@dataclasses.dataclass(frozen=True, eq=False)
class HostVariables:
    """The variables of a model on the host.

    Whoever loads them needs none of the classes, of linen, nnx or the user, that the pytree is
    made of: to the artefact they are arrays with names.

    Attributes:
      arrays: name -> array.
      unflatten: name -> array (or tracer) of all variables, to the pytree that the model takes.
    """

    arrays: dict[str, np.ndarray]
    unflatten: Callable[[Mapping[str, Any]], Any]

    @classmethod
    def fetch(cls, variables: Any) -> HostVariables:
        """Copies `variables`, a pytree of arrays, to the host.

        Raises:
          ValueError: an array has parts on other hosts only, or two have the same name.
          TypeError: a leaf that is no array of numbers.
        """
        leaves = leaf_names(variables, what="variables", root="variables")
        treedef = jax.tree.structure(variables)
        # Keys of jax.random are stored as the numbers that they hold.
        key_impls = {
            name: jax.random.key_impl(leaf)
            for name, leaf in leaves.items()
            if hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        }

        def unflatten(arrays: Mapping[str, Any]) -> Any:
            return treedef.unflatten(
                jax.random.wrap_key_data(arrays[name], impl=key_impls[name])
                if name in key_impls
                else arrays[name]
                for name in leaves
            )

        arrays = {
            name: _to_host(name, jax.random.key_data(leaf) if name in key_impls else leaf)
            for name, leaf in leaves.items()
        }
        return cls(arrays, unflatten)

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Name -> shape and dtype."""
        return {name: TensorSpec(a.shape, a.dtype) for name, a in self.arrays.items()}


def _to_host(name: str, leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        if not leaf.is_fully_replicated:
            raise ValueError(
                f"Variable {name!r} is spread over several hosts ({leaf.sharding}). Gather it "
                "first: jax.experimental.multihost_utils.process_allgather(x, tiled=True)."
            )
        leaf = leaf.addressable_data(0)
    array = np.asarray(leaf)
    if not is_numeric(array.dtype):
        raise TypeError(
            f"Variable {name!r} is of type {type(leaf).__name__}; expected an array of numbers."
        )
    return array.astype(narrow(array.dtype), copy=False)


def save(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays to `directory`, which must not exist. Only this process takes part.

    Arrays without elements are not written, since orbax refuses them: their spec says it all.
    """
    arrays = {name: array for name, array in arrays.items() if array.size}
    if arrays:
        with _checkpointer() as checkpointer:
            checkpointer.save(directory.absolute(), arrays)


def restore(directory: Path, specs: Mapping[str, TensorSpec]) -> dict[str, np.ndarray]:
    """Reads what `save` wrote, in the order of `specs`.

    Raises:
      ValueError: the files hold other arrays than `specs` says.
    """
    saved = {}
    if any(0 not in spec.shape for spec in specs.values()):
        with _checkpointer() as checkpointer:
            saved = checkpointer.restore(directory.absolute())
    arrays = {}
    for name, spec in specs.items():
        array = spec.zeros() if 0 in spec.shape else saved.get(name)
        if array is None or TensorSpec(array.shape, array.dtype) != spec:
            found = "absent" if array is None else TensorSpec(array.shape, array.dtype)
            raise ValueError(
                f"{directory} is damaged: variable {name!r} is {found}, and the manifest says "
                f"{spec}."
            )
        arrays[name] = array
    return arrays


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    # Left to itself, orbax waits at barriers for every process of the job; here one works alone.
    process = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process},
        barrier_sync_key_prefix=f"export_{process}",
    )
    return ocp.Checkpointer(
        ocp.StandardCheckpointHandler(multiprocessing_options=alone),
        multiprocessing_options=alone,
    )
