"""The names by which messages speak of a function and what it is fed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax


class FunctionNames:
    """A function's own name and those of its feeds.

    Args:
      fn: a function, a bound method, a partial, or any callable object.

    Attributes:
      function: for messages, such as `train_step`.
    """

    def __init__(self, fn: Callable[..., Any]):
        inner: Any = fn
        while isinstance(inner, functools.partial):
            inner = inner.func
        self.function: str = getattr(inner, "__name__", type(inner).__name__)
        self._fn = fn

    @functools.cached_property
    def _parameters(self) -> list[str]:
        # Only messages need them, and to find out takes longer than to run a small program.
        try:
            parameters = inspect.signature(self._fn).parameters.values()
        except (TypeError, ValueError):  # some callables made in C do not tell
            return []
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [parameter.name for parameter in parameters if parameter.kind in positional]

    def feed(self, index: int) -> str:
        """Returns the name of the feed at `index`; `feeds[3]` if the function gives it none."""
        return self._parameters[index] if index < len(self._parameters) else f"feeds[{index}]"

    def leaves(self, structure: Any) -> list[str]:
        """Returns the path of each leaf of a tuple of feeds, such as `batch/image`, in order.

        Args:
          structure: the `PyTreeDef` of the tuple.
        """
        numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
        paths, _ = jax.tree_util.tree_flatten_with_path(numbered)
        return [
            "/".join([self.feed(path[0].idx), *(key_name(key) for key in path[1:])])
            for path, _ in paths
        ]


def key_name(key: Any) -> str:
    """Returns a dict key, an index or an attribute on the way to a leaf as plain text."""
    return jax.tree_util.keystr((key,), simple=True)
