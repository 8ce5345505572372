"""What a program is compiled for: structure, shapes, dtypes and shardings of its feeds."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from jax.core import Tracer

from estimator.runtime.errors import FeedError
from estimator.runtime.naming import FunctionNames

_MOST_NAMED = 5


class ArraySpec(NamedTuple):
    """One feed, without its values.

    Attributes:
      shape: its dimensions.
      dtype: as JAX holds it: 64-bit types become 32-bit ones unless they are turned on.
      sharding: where it must lie, or None if JAX may choose.
    """

    shape: tuple[int, ...]
    dtype: Any
    sharding: jax.sharding.Sharding | None

    @classmethod
    def of(cls, leaf: Any) -> ArraySpec:
        """Reads a value or a `jax.ShapeDtypeStruct`.

        Raises:
          TypeError: `leaf` is nothing that a program can be fed.
        """
        if isinstance(leaf, Tracer):
            raise TypeError("a tracer: inside a transformation call the function itself")
        if isinstance(leaf, jax.Array):
            return cls(leaf.shape, leaf.dtype, leaf.sharding if leaf.committed else None)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
            return cls(leaf.shape, dtype, leaf.sharding)
        try:
            aval = jax.typeof(leaf)
        except TypeError as error:
            raise TypeError(f"{_short(leaf)} of {type(leaf)}") from error
        return cls(aval.shape, aval.dtype, None)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Signature:
    """The feeds of one program.

    Attributes:
      names: of the function that is fed.
      structure: the `PyTreeDef` of the tuple of feeds.
      specs: one for each leaf.
      key: equal, and of equal hash, for feeds that the same program serves.
    """

    def __init__(self, names: FunctionNames, structure: Any, specs: tuple[ArraySpec, ...]):
        self.names = names
        self.structure = structure
        self.specs = specs
        self.key = (structure, specs)

    @classmethod
    def of(cls, names: FunctionNames, feeds: tuple[Any, ...]) -> Signature:
        """Reads the signature of feeds: arrays, scalars or `jax.ShapeDtypeStruct`s.

        Raises:
          FeedError: one is nothing that a program can be fed.
        """
        leaves, structure = jax.tree.flatten(feeds)
        specs = []
        for index, leaf in enumerate(leaves):
            try:
                specs.append(ArraySpec.of(leaf))
            except TypeError as error:
                name = names.leaves(structure)[index]
                raise FeedError(
                    f"feed '{name}' of {names.function} is {error}. Expected an array or a number."
                ) from error
        return cls(names, structure, tuple(specs))

    def placed(self, shardings: tuple[Any, ...]) -> Signature:
        """Returns the same with the sharding that the compiler gave each feed.

        Args:
          shardings: for each feed its pytree of shardings; None where it is not used.
        """
        flat = self.structure.flatten_up_to(shardings)
        specs = tuple(
            spec._replace(sharding=sharding)
            for spec, sharding in zip(self.specs, flat, strict=True)
        )
        return Signature(self.names, self.structure, specs)

    def abstract(self) -> tuple[Any, ...]:
        """Returns the feeds as `jax.ShapeDtypeStruct`s."""
        return jax.tree.unflatten(
            self.structure,
            [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=s.sharding) for s in self.specs],
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all feeds together."""
        return sum(spec.nbytes for spec in self.specs)

    def leaf_names(self) -> list[str]:
        """Returns the path of each leaf, such as `batch/image`."""
        return self.names.leaves(self.structure)

    def mismatch(self, feeds: tuple[Any, ...]) -> FeedError | None:
        """Returns an error that names what does not fit in `feeds`, or None if all fits."""
        try:
            got = Signature.of(self.names, feeds)
        except FeedError as error:
            return error
        problem = self._wrong_count(got) or self._wrong_structure(got) or self._wrong_leaves(got)
        return FeedError(problem) if problem else None

    def _wrong_count(self, got: Signature) -> str | None:
        wanted, given = (len(one.structure.children()) for one in (self, got))
        if wanted == given:
            return None
        names = ", ".join(map(self.names.feed, range(wanted)))
        return f"{self.names.function} takes {wanted} feeds ({names}), got {given}."

    def _wrong_structure(self, got: Signature) -> str | None:
        if self.structure == got.structure:
            return None
        wanted, given = self.leaf_names(), got.leaf_names()
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in wanted]
        if not missing and not unknown:
            differ = f"expected {self.structure}, got {got.structure}"
        else:
            differ = "; ".join(
                f"{what} {_listed([repr(name) for name in names])}"
                for what, names in (("missing", missing), ("unexpected", unknown))
                if names
            )
        return f"the feeds of {self.names.function} differ in structure: {differ}."

    def _wrong_leaves(self, got: Signature) -> str | None:
        wrong = [
            f"feed '{name}' is {given}, expected {wanted}"
            for name, given, wanted in zip(self.leaf_names(), got.specs, self.specs, strict=True)
            if (given.shape, given.dtype) != (wanted.shape, wanted.dtype)
        ]
        if wrong:
            return (
                f"{self.names.function} was compiled for other feeds: {_listed(wrong)}. Feed "
                "what it was compiled for, or make another callable."
            )
        wrong = [
            f"feed '{name}' lies on {given.sharding}, expected {wanted.sharding}"
            for name, given, wanted in zip(self.leaf_names(), got.specs, self.specs, strict=True)
            if given.sharding is not None
            and wanted.sharding is not None
            and not given.sharding.is_equivalent_to(wanted.sharding, len(wanted.shape))
        ]
        if wrong:
            return (
                f"{self.names.function} was compiled for feeds that lie elsewhere: "
                f"{_listed(wrong)}. Use jax.device_put, or make another callable."
            )
        return None


def _listed(items: list[str]) -> str:
    more = len(items) - _MOST_NAMED
    return ", ".join(items[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
