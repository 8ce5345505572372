"""Which outputs of a function a caller wants, named by path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from estimator.runtime.naming import key_name


class Fetches:
    """Outputs by path, in the structure in which the caller wants them back.

    Args:
      paths: a pytree whose leaves are paths: `"loss"`, `("loss", "metrics/accuracy")`,
        `{"last": "layers/2"}`. A path may lead to a whole subtree.

    Attributes:
      key: equal, and of equal hash, for equal fetches.

    Raises:
      TypeError: a leaf is no string.
      ValueError: there is no leaf.
    """

    def __init__(self, paths: Any):
        self._paths, self._structure = jax.tree.flatten(paths)
        self.key = (self._structure, tuple(self._paths))
        for path in self._paths:
            if not isinstance(path, str):
                raise TypeError(
                    f"fetches={paths!r} must hold paths of outputs, such as 'loss' or "
                    f"'metrics/accuracy'; {path!r} is of {type(path)}."
                )
        if not self._paths:
            raise ValueError(f"fetches={paths!r} names no output. Use None to fetch all.")

    def pick(self, outputs: Any) -> Any:
        """Returns the outputs at the paths, in the structure of the fetches.

        Raises:
          ValueError: nothing is at a path; lists what is.
        """
        return jax.tree.unflatten(self._structure, [_at(path, outputs) for path in self._paths])


def _at(path: str, outputs: Any) -> Any:
    found = next(_matches(path, outputs), None)
    if found is None:
        flat, _ = jax.tree_util.tree_flatten_with_path(outputs)
        known = ["/".join(map(key_name, keys)) for keys, _ in flat]
        raise ValueError(f"fetches: there is no output {path!r}. The outputs are {known}.")
    return found[0]


def _matches(path: str, node: Any) -> Iterator[tuple[Any]]:
    """Yields what lies at `path` below `node`. A name may itself contain slashes."""
    children, _ = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda inner: inner is not node
    )
    for keys, child in children:
        if not keys:
            return  # `node` is a leaf
        name = key_name(keys[0])
        if path == name:
            yield (child,)
        elif path.startswith(name + "/"):
            yield from _matches(path.removeprefix(name + "/"), child)
