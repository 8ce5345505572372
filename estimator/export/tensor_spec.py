"""Shape and dtype of one tensor, and the names of the tensors in a pytree."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor.

    Attributes:
      shape: sizes of the dimensions; None, which only the first one may be, is the batch.
      dtype: a NumPy dtype; given as anything that names one, such as `"bfloat16"`.
    """

    shape: tuple[int | None, ...]
    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", jnp.dtype(self.dtype))
        for axis, size in enumerate(self.shape):
            if size is None and axis == 0:
                continue
            if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
                raise ValueError(
                    f"shape={self.shape} has {size!r} at axis {axis}, where an int is expected. "
                    "Only the first dimension may be None: the batch."
                )

    @property
    def row(self) -> tuple[int | None, ...]:
        """The shape without the first dimension."""
        return self.shape[1:]

    def with_rows(self, rows: Any) -> jax.ShapeDtypeStruct:
        """Returns the abstract array with `rows`, an int or a symbol, as first dimension."""
        return jax.ShapeDtypeStruct((rows, *self.row), self.dtype)

    def zeros(self) -> np.ndarray:
        """Returns zeros of this shape: of no rows where the batch is None."""
        return np.zeros([size or 0 for size in self.shape], self.dtype)

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype.name, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TensorSpec:
        return cls(tuple(value["shape"]), value["dtype"])

    def __str__(self) -> str:
        sizes = ", ".join("batch" if size is None else str(size) for size in self.shape)
        return f"{self.dtype.name}[{sizes}]"


def narrow(dtype: np.dtype) -> np.dtype:
    """Returns the dtype an array has once JAX holds it: 64-bit types lose half their bits
    unless `jax_enable_x64` is set."""
    return jax.dtypes.canonicalize_dtype(dtype)


def is_numeric(dtype: Any) -> bool:
    """Says whether JAX computes with `dtype`: numbers and booleans, not strings or objects."""
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def leaf_names(tree: Any, *, what: str, root: str) -> dict[str, Any]:
    """Returns the leaves of a pytree by name, in the order of `jax.tree.leaves`.

    A name is the path to the leaf: `"text/ids"` for `tree["text"]["ids"]`.

    Args:
      tree: the pytree.
      what: what the tree holds, for errors.
      root: the name of a tree that is one leaf, with no path to it.

    Raises:
      ValueError: two leaves have one name, as in `{"a/b": x, "a": {"b": y}}`.
    """
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/") if path else root
        if name in leaves:
            raise ValueError(
                f"{what} hold two arrays that are both called {name!r} once the keys on the way "
                "to them are joined by '/'. Rename one of the keys."
            )
        leaves[name] = leaf
    return leaves
