"""Variables that a run which begins takes from the checkpoint of another."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath

from estimator.checkpoints import arrays
from estimator.checkpoints.layout import CheckpointMismatchError, existing
from estimator.checkpoints.trees import is_key, leaf_name, named

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Which variables a run that begins takes from a checkpoint, and under which names.

    Those of the model that the checkpoint has not are initialised as ever, and the log names them.
    Random keys are never taken.

    Attributes:
      checkpoint: path of one, or a model_dir, whose newest one is read.
      include: regular expression that the whole name of a variable matches, such as
        `params/encoder/.*`.
      exclude: regular expression of those of them to leave out, such as that of a last layer
        with another number of classes.
      rename: name of a variable or of a layer in the model -> its name in the checkpoint, such
        as `{"params/encoder": "params/bert/encoder"}`.
    """

    checkpoint: str | os.PathLike[str]
    include: str = ".*"
    exclude: str | None = None
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for field in ("include", "exclude"):
            try:
                re.compile(getattr(self, field) or "")
            except (re.error, TypeError) as error:
                raise ValueError(
                    f"{field}={getattr(self, field)!r} is no regular expression: {error}."
                ) from None

    @classmethod
    def of(cls, given: Any) -> WarmStart | None:
        """Returns what `Estimator(warm_start_from=)` means: a path takes all that is there.

        Raises:
          TypeError: it is neither a path, a WarmStart nor None.
        """
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str | os.PathLike):
            return cls(checkpoint=given)
        raise TypeError(
            f"warm_start_from must be the path of a checkpoint or a WarmStart, got {given!r}."
        )

    def wants(self, name: str) -> bool:
        """Says whether the variable of this name is to be taken."""
        left_out = self.exclude is not None and re.fullmatch(self.exclude, name)
        return bool(re.fullmatch(self.include, name)) and not left_out

    def source(self, name: str) -> str:
        """Returns the name in the checkpoint of a variable of the model."""
        fitting = [old for old in self.rename if name == old or name.startswith(f"{old}/")]
        longest = max(fitting, key=len, default="")
        return self.rename[longest] + name[len(longest) :] if fitting else name


def read_warm_start(warm_start: WarmStart, abstract: Any) -> dict[str, jax.Array]:
    """Returns what `warm_start` takes of the variables of a model, by their names there, placed
    as the shardings of `abstract` say.

    Args:
      warm_start: says which.
      abstract: `{"params": ..., collection: ...}` of `jax.ShapeDtypeStruct` with shardings.

    Raises:
      FileNotFoundError: there is no checkpoint.
      ValueError: `include` and `exclude` leave nothing.
      CheckpointMismatchError: a variable has another shape or dtype there, one that is renamed
        is not there, or none is.
    """
    path = existing(warm_start.checkpoint)
    wanted = {
        name: leaf
        for name, leaf in named(abstract).items()
        if warm_start.wants(name) and not is_key(leaf)
    }
    if not wanted:
        raise ValueError(
            f"include={warm_start.include!r} and exclude={warm_start.exclude!r} leave none of the "
            f"model's variables, which are {sorted(named(abstract))}."
        )
    on_disk = arrays.shapes(path / "variables")
    sources = {name: warm_start.source(name) for name in wanted}
    new = sorted(name for name, source in sources.items() if source not in on_disk)
    lost = [f"{sources[name]} ({name})" for name in new if sources[name] != name]
    if lost or len(new) == len(wanted):
        what = f"has not {', '.join(lost)}" if lost else "has none of the model's variables"
        raise CheckpointMismatchError(
            f"The checkpoint {path} {what}. It has {sorted(on_disk)}. Give the names that differ "
            "in WarmStart(rename={name in the model: name in the checkpoint})."
        )
    taken = {name: (sources[name], leaf) for name, leaf in wanted.items() if name not in new}
    _compare(path, on_disk, taken)
    if new:
        logger.info("%s has not %s: initialised as ever.", path, ", ".join(new))
    logger.info("%d variables begin as they are in %s.", len(taken), path)
    return _read(path, taken)


def _compare(
    path: epath.Path, on_disk: Mapping[str, Any], taken: Mapping[str, tuple[str, Any]]
) -> None:
    pairs = [(name, on_disk[source], leaf) for name, (source, leaf) in taken.items()]
    differing = [
        f"{name}: {list(found.shape)} {found.dtype} in the checkpoint, "
        f"{list(leaf.shape)} {leaf.dtype} in the model"
        for name, found, leaf in pairs
        if (found.shape, found.dtype) != (leaf.shape, leaf.dtype)
    ]
    if differing:
        raise CheckpointMismatchError(
            f"The variables in {path} differ: {'; '.join(differing)}. Leave them out by "
            "WarmStart(exclude=...), or change the model back."
        )


def _read(path: epath.Path, taken: Mapping[str, tuple[str, Any]]) -> dict[str, jax.Array]:
    import orbax.checkpoint as ocp

    part = path / "variables"
    leaves = dict(taken.values())
    tree = arrays.metadata(part)
    item = jax.tree_util.tree_map_with_path(
        lambda key, _: leaves.get(leaf_name(key), ocp.PLACEHOLDER), tree
    )
    restore_args = jax.tree.map(
        lambda leaf: (
            ocp.RestoreArgs(restore_type=np.ndarray)
            if leaf is ocp.PLACEHOLDER
            else ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=leaf.dtype)
        ),
        item,
    )
    found = named(arrays.restore(part, item, restore_args))
    # Of two that begin as one each is changed in its own memory.
    return {name: jax.numpy.copy(found[source]) for name, (source, _) in taken.items()}
