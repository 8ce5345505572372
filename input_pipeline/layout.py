"""The structure, shapes and dtypes that the first element has and all others must have."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from input_pipeline.dtypes import device_dtype, to_numpy


def split(element: Any) -> tuple[Any, Any]:
    """Returns (features, labels): a plain tuple of two is that pair, all else is features.

    Raises:
      TypeError: it is a namedtuple that looks like the pair.
    """
    if type(element) is tuple and len(element) == 2:
        return element
    fields = getattr(element, "_fields", ())
    if set(fields) == {"features", "labels"}:
        raise TypeError(
            f"The data is the namedtuple {type(element).__name__}{fields}, and all of a namedtuple "
            "counts as features. Return a plain tuple (features, labels) instead."
        )
    return element, None


def joined(pair: tuple[Any, Any]) -> Any:
    """Returns the element that `split` makes the pair of."""
    features, labels = pair
    return features if labels is None else pair


def leaf_name(path: Any) -> str:
    """Returns a name such as `features['image']` for the path of a leaf of (features, labels)."""
    return ("features", "labels")[path[0].idx] + jax.tree_util.keystr(path[1:])


def tensor_name(path: Any) -> str:
    """Returns a name such as `features/image`, by which settings name a leaf."""
    rest = jax.tree_util.keystr(path[1:], simple=True, separator="/")
    return "/".join(filter(None, [("features", "labels")[path[0].idx], rest]))


def named_leaves(pair: tuple[Any, Any]) -> tuple[list[str], list[np.ndarray], Any]:
    """Returns names such as `features['image']`, the leaves as numpy arrays, and the treedef."""
    paths_and_leaves, treedef = jax.tree_util.tree_flatten_with_path(pair)
    names = [leaf_name(path) for path, _ in paths_and_leaves]
    return names, [to_numpy(leaf) for _, leaf in paths_and_leaves], treedef


def no_batch_dimension(name: str, leaf: np.ndarray) -> ValueError:
    """Returns the error for a scalar where an array of examples is needed."""
    if leaf.dtype == object:
        return ValueError(f"{name} is a {type(leaf.item()).__name__}, not an array.")
    return ValueError(
        f"{name} is a scalar, and has no batch dimension. Return an array [batch, ...]; lists are "
        "read as a structure of leaves, so make arrays of them with np.asarray."
    )


@dataclasses.dataclass(frozen=True)
class Layout:
    """What each element is like.

    Attributes:
      treedef: structure of (features, labels).
      names: of the leaves.
      shapes: of each leaf of one example, without the batch dimension; None is any size.
      given_dtypes: as the user's data has them.
      batched: whether elements are batches, `[batch, ...]` in each leaf, or single examples.
    """

    treedef: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[Any, ...], ...]
    given_dtypes: tuple[np.dtype, ...]
    batched: bool

    @classmethod
    def of(cls, pair: tuple[Any, Any], *, batched: bool) -> Layout:
        """Returns the layout of the first element.

        Raises:
          ValueError: it has no leaves, or is a batch and has a scalar leaf.
        """
        names, leaves, treedef = named_leaves(pair)
        if not leaves:
            raise ValueError(
                f"The input holds no array at all: got {pair[0]!r} as features. (Columns of "
                "strings, dates and objects stay on the host: give at least one of numbers.)"
            )
        for name, leaf in zip(names, leaves, strict=True):
            if batched and leaf.ndim == 0:
                raise no_batch_dimension(name, leaf)
        return cls(
            treedef=treedef,
            names=tuple(names),
            shapes=tuple(leaf.shape[1:] if batched else leaf.shape for leaf in leaves),
            given_dtypes=tuple(leaf.dtype for leaf in leaves),
            batched=batched,
        )

    @functools.cached_property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """The dtypes on the device.

        Raises:
          ValueError: a leaf holds no numbers.
        """
        return tuple(map(device_dtype, self.given_dtypes, self.names))

    def with_shapes_of(self, pair: tuple[Any, Any]) -> Layout:
        """Returns this layout with the trailing shapes of the batch `pair`."""
        leaves = jax.tree_util.tree_leaves(pair)
        return dataclasses.replace(self, shapes=tuple(np.shape(leaf)[1:] for leaf in leaves))

    def match(self, pair: tuple[Any, Any], index: int) -> list[np.ndarray]:
        """Returns the leaves of an element as numpy arrays.

        Args:
          pair: (features, labels).
          index: of the element in the input, from 0, for the error.

        Raises:
          ValueError: its structure, a dtype or a shape is another than in the first element,
            or its leaves differ in how many examples they have.
        """
        leaves, treedef = jax.tree_util.tree_flatten(pair)
        if treedef != self.treedef:
            raise self._other_structure(pair, index)
        arrays = [leaf if type(leaf) is np.ndarray else np.asarray(leaf) for leaf in leaves]
        rows = arrays[0].shape[:1]
        for position, array in enumerate(arrays):
            shape = array.shape
            if self.batched:
                if shape[:1] != rows:
                    raise self._other_rows(arrays, position, index)
                shape = shape[1:]
            expected = self.shapes[position]
            if (shape != expected and not _fits(shape, expected)) or not _alike(
                array.dtype, self.given_dtypes[position]
            ):
                raise self._other_leaf(array, position, index)
        return arrays

    def unflatten(self, leaves: list[Any]) -> tuple[Any, Any]:
        """Returns (features, labels) with `leaves` in their places."""
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    def element_spec(self, batch_size: int) -> tuple[Any, Any]:
        """Returns (features, labels) of one batch with shapes and dtypes in place of arrays."""
        return self.unflatten(
            [
                jax.ShapeDtypeStruct((batch_size, *shape), dtype)
                for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
            ]
        )

    def buffers(self, capacity: int, batch_size: int) -> list[np.ndarray]:
        """Returns unset arrays `[capacity, batch_size, ...]`, one for each leaf."""
        # Fresh ones for each stack: on CPU, jax arrays may go on using this very memory.
        return [
            np.empty((capacity, batch_size, *shape), dtype)
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    @property
    def _noun(self) -> str:
        return "batch" if self.batched else "example"

    def _other_structure(self, pair: tuple[Any, Any], index: int) -> ValueError:
        expected = _outline(self.unflatten(list(self.names)))
        return ValueError(
            f"The structure of {self._noun} {index} differs from that of the first: "
            f"expected {expected}, got {_outline(pair)}."
        )

    def _other_rows(self, arrays: list[np.ndarray], position: int, index: int) -> ValueError:
        if arrays[position].ndim == 0 or arrays[0].ndim == 0:
            scalar = position if arrays[position].ndim == 0 else 0
            return no_batch_dimension(self.names[scalar], arrays[scalar])
        return ValueError(
            f"The leaves of batch {index} differ in their number of examples: {self.names[0]} has "
            f"{len(arrays[0])}, {self.names[position]} has {len(arrays[position])}."
        )

    def _other_leaf(self, array: np.ndarray, position: int, index: int) -> ValueError:
        rows = ("batch",) if self.batched else ()
        expected_shape = _shape(*rows, *self.shapes[position])
        return ValueError(
            f"{self.names[position]} of {self._noun} {index} differs from the first: expected "
            f"{self.given_dtypes[position]} {expected_shape}, got {array.dtype} "
            f"{_shape(*array.shape)}. Make all alike, by padding or casting."
        )


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    """Says whether a shape is as expected, where None stands for any size."""
    return len(shape) == len(expected) and all(
        wanted is None or size == wanted for size, wanted in zip(shape, expected, strict=True)
    )


def _alike(one: np.dtype, other: np.dtype) -> bool:
    """Says whether two dtypes are the same, or differ only in how long their strings may be."""
    return one == other or (one.kind == other.kind and one.kind in "US")


def _shape(*dims: int | str | None) -> str:
    return f"[{', '.join('*' if dim is None else str(dim) for dim in dims)}]"


def _outline(pair: tuple[Any, Any]) -> str:
    """Returns (features, labels) with `*` in place of each leaf."""
    features, labels = jax.tree_util.tree_map(lambda leaf: _STAR, pair)
    return f"features={features}, labels={labels}"


class _Star:
    def __repr__(self) -> str:
        return "*"


_STAR = _Star()
