"""Where the checkpoints of a model_dir lie, and what a run notes in each."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from estimator.checkpoints.quiet import hush_orbax

LAYOUT = 1
"""Version of the layout `<model_dir>/checkpoints/<step>/{variables,training,run}`."""


_PARTS = ("variables", "training", "run")
_SCHEMES = ("gs", "s3")


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the cause is attached."""


class CheckpointMismatchError(ValueError):
    """A checkpoint holds other variables than the model has."""


def as_path(path: str | os.PathLike[str]) -> epath.Path:
    """Returns `path` as an absolute path: a local one, or an address such as `gs://bucket/run`.

    Raises:
      ValueError: it is an address of a kind that orbax cannot write arrays to.
    """
    text = os.fspath(path)
    scheme, found, _ = text.partition("://")
    if found and scheme not in _SCHEMES:
        raise ValueError(
            f"{text!r} is no folder that checkpoints can be in: they go to local ones, and to "
            f"{' and '.join(f'{known}://' for known in _SCHEMES)}. Mount {scheme}:// as a folder."
        )
    path = epath.Path(text).expanduser()
    return path.absolute() if is_local(path) else path


def is_local(path: epath.Path) -> bool:
    """Says whether `path` is one of this machine's file system."""
    return "://" not in str(path)


def directory(model_dir: str | os.PathLike[str]) -> epath.Path:
    """Returns where the checkpoints of `model_dir` lie, each in a folder named by its step."""
    return as_path(model_dir) / "checkpoints"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint of a model_dir.

    Attributes:
      step: global step at which it was taken.
      path: where it is.
      written: when it became whole.
    """

    step: int
    path: epath.Path
    written: datetime.datetime


def list(model_dir: str | os.PathLike[str]) -> builtins.list[Checkpoint]:
    """Returns the whole checkpoints in `model_dir`, oldest first. Needs no device."""
    folder = directory(model_dir)
    return [
        Checkpoint(step=found.step, path=folder / str(found.step), written=found.commit_timestamp)
        for found in _whole(folder)
    ]


def latest(model_dir: str | os.PathLike[str]) -> epath.Path | None:
    """Returns the newest whole checkpoint in `model_dir`, or None."""
    folder = directory(model_dir)
    found = _whole(folder)
    return folder / str(found[-1].step) if found else None


def _whole(folder: epath.Path) -> Sequence[Any]:
    """Returns what orbax knows of each whole checkpoint in `folder`, oldest first."""
    if not folder.is_dir():
        return []
    import orbax.checkpoint as ocp

    hush_orbax()
    return sorted(ocp.path.step.standard_name_format().find_all(folder), key=lambda at: at.step)


def existing(path: str | os.PathLike[str]) -> epath.Path:
    """Returns `path` as the path of a checkpoint; of a model_dir, its newest one.

    Raises:
      FileNotFoundError: there is no whole checkpoint.
      CheckpointError: it is damaged, or has another layout than this version reads.
    """
    path = as_path(path)
    is_one = path.name.isdigit() and path.is_dir()
    found = path if is_one or _has_parts(path) else latest(path)
    if found is None:
        raise FileNotFoundError(
            f"There is no checkpoint at {path}. Pass the folder of one, such as what "
            "Estimator.latest_checkpoint() returns, or a model_dir that holds one."
        )
    _run(found)
    return found


def _has_parts(path: epath.Path) -> bool:
    return any((path / part).is_dir() for part in _PARTS)


def global_step(path: str | os.PathLike[str]) -> int:
    """Returns the global step at which the checkpoint at `path` was taken."""
    return int(_run(as_path(path))["global_step"])


def input_position(path: str | os.PathLike[str]) -> Any:
    """Returns where the input stood when the checkpoint was taken, or None."""
    return _run(as_path(path))["input_position"]


def run_notes(global_step: int, input_position: Any) -> dict[str, Any]:
    """Returns what a run notes in a checkpoint besides its state (JSON)."""
    return {"layout": LAYOUT, "global_step": global_step, "input_position": input_position}


def _run(path: epath.Path) -> Mapping[str, Any]:
    from orbax.checkpoint import JsonCheckpointHandler

    hush_orbax()
    if not _has_parts(path):
        there = ", ".join(sorted(part.name for part in path.iterdir())) or "nothing"
        raise CheckpointError(
            f"{path} is no checkpoint of jax-estimator: it holds {there} where this version reads "
            f"{', '.join(_PARTS)}. Use a new model_dir; what wrote it can read it."
        )
    with damage_named(path):
        run = JsonCheckpointHandler().restore(path / "run")
        layout = run["layout"]
    if layout != LAYOUT:
        raise CheckpointError(
            f"The checkpoint {path} has the layout {layout}; this version reads {LAYOUT}. Read it "
            "with the version of jax-estimator that wrote it, or train into a new model_dir."
        )
    return run


@contextlib.contextmanager
def damage_named(checkpoint: epath.Path) -> Iterator[None]:
    """Turns what orbax raises about files that are missing or cut into what a user can act on."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"The checkpoint {checkpoint} is damaged and cannot be read "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). Remove "
            "that folder, and training goes on from the newest one that is left."
        ) from error
