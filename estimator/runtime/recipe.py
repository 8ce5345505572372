"""A function and how to compile it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from estimator.runtime.errors import FeedError
from estimator.runtime.fetches import Fetches
from estimator.runtime.naming import FunctionNames
from estimator.runtime.signature import Signature


class Recipe:
    """A function with everything that decides what is compiled from it, but for its feeds.

    Args:
      fn: takes arrays as positional arguments. A function that `jax.jit` made brings its own
        options, and allows no others.
      fetches: see `Fetches`; None for all outputs.
      donate: positions of the arguments whose memory the outputs may take over.
      out_shardings: a pytree prefix of what is fetched; None where JAX may choose.

    Attributes:
      names: of `fn`.
      key: equal, and of equal hash, for recipes that compile to the same program. Functions
        are equal if Python says so, which for most means that they are the same object.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        fetches: Any = None,
        donate: int | Sequence[int] = (),
        out_shardings: Any = None,
    ):
        if not callable(fn):
            raise TypeError(f"fn={fn!r} must be a function, got {type(fn)}.")
        if type(fn).__hash__ is None:
            raise TypeError(
                f"fn={fn!r} has no hash, so its program could not be found again. Give "
                f"{type(fn)} a __hash__, or pass a function."
            )
        self.names = FunctionNames(fn)
        self._fn = fn
        self._fetches = None if fetches is None else Fetches(fetches)
        self._donate = (donate,) if isinstance(donate, int) else tuple(donate)
        self._out_shardings = out_shardings
        leaves, structure = jax.tree.flatten(out_shardings)
        fetched = None if self._fetches is None else self._fetches.key
        self.key = (fn, fetched, self._donate, structure, tuple(leaves))
        plain = fetches is None and not self._donate and out_shardings is None
        if not plain and isinstance(fn, jax.stages.Wrapped):
            raise ValueError(
                f"{self.names.function} was made by jax.jit with options of its own, so fetches, "
                "donate and out_shardings cannot be set. Pass the function that was jitted."
            )

    def signature(self, feeds: tuple[Any, ...]) -> Signature:
        """Returns the signature of `feeds`; see `Signature.of` for what is raised."""
        return Signature.of(self.names, feeds)

    def check_devices(self, signature: Signature, devices: Sequence[Any]) -> None:
        """Raises FeedError or ValueError if the feeds or outputs lie on other devices."""
        for name, spec in zip(signature.leaf_names(), signature.specs, strict=True):
            strays = _strays(spec.sharding, devices)
            if strays:
                raise FeedError(
                    f"feed '{name}' of {self.names.function} lies on {strays}, which the session "
                    f"does not use. Its devices are {list(devices)}."
                )
        for sharding in jax.tree.leaves(self._out_shardings):
            strays = _strays(sharding, devices)
            if strays:
                raise ValueError(
                    f"out_shardings of {self.names.function} name {strays}, which the session "
                    f"does not use. Its devices are {list(devices)}."
                )

    def compile(self, signature: Signature, device: Any) -> tuple[jax.stages.Compiled, float]:
        """Compiles for feeds of `signature`; takes seconds, and does not run anything.

        Args:
          signature: of the feeds.
          device: where to run if neither feeds nor function say; JAX's default if None.

        Returns:
          The program, and the seconds that it took to compile.

        Raises:
          Whatever the function raises when it is traced.
        """
        start = time.perf_counter()
        placed = contextlib.nullcontext() if device is None else jax.default_device(device)
        with placed:
            compiled = self._jitted().lower(*signature.abstract()).compile()
        return compiled, time.perf_counter() - start

    def _jitted(self) -> Any:
        if isinstance(self._fn, jax.stages.Wrapped):
            return self._fn
        fn = self._fn
        if self._fetches is not None:
            fn = _picking(fn, self._fetches)
        options = {} if self._out_shardings is None else {"out_shardings": self._out_shardings}
        return jax.jit(fn, donate_argnums=self._donate, **options)


def _picking(fn: Callable[..., Any], fetches: Fetches) -> Callable[..., Any]:
    # What is not returned the compiler drops, with all that only led to it.
    @functools.wraps(fn)
    def picked(*feeds: Any) -> Any:
        return fetches.pick(fn(*feeds))

    return picked


def _strays(sharding: Any, devices: Sequence[Any]) -> list[Any]:
    if sharding is None:
        return []
    return sorted(sharding.device_set - set(devices), key=lambda device: device.id)
