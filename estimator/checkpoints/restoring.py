"""Brings what a checkpoint holds onto the devices of a model, if it is that model's."""

from __future__ import annotations

import os
from typing import Any

import jax
from etils import epath

from estimator.checkpoints import arrays
from estimator.checkpoints.layout import CheckpointMismatchError, existing
from estimator.checkpoints.trees import named, with_keys, without_keys
from estimator.state import TrainState


def restore_variables(path: str | os.PathLike[str], abstract: Any) -> Any:
    """Returns the variables that `abstract` names, placed as its shardings say, on whatever
    devices they were saved.

    The checkpoint may hold more, such as those of a layer that only training uses.

    Args:
      path: of the checkpoint, or of a model_dir, whose newest one is read.
      abstract: `{"params": ..., collection: ...}` of `jax.ShapeDtypeStruct` with shardings.

    Raises:
      FileNotFoundError: there is no checkpoint.
      CheckpointMismatchError: a variable is missing or has another shape or dtype.
    """
    path = existing(path)
    _compare(path, "variables", arrays.shapes(path / "variables"), abstract, allow_more=True)
    return _restore(path / "variables", abstract)


def load_like(path: str | os.PathLike[str], abstract: Any) -> Any:
    """Returns the variables that `abstract` names whole, as NumPy arrays: as
    `restore_variables`, but without a device, and on one process of many alone."""
    path = existing(path)
    part = path / "variables"
    _compare(path, "variables", arrays.shapes(part), abstract, allow_more=True)
    return with_keys(abstract, arrays.load(part, without_keys(abstract)))


def restore_train_state(path: epath.Path, abstract: TrainState) -> TrainState:
    """Returns the train state of the checkpoint at `path`, placed as the shardings of
    `abstract` say, on whatever devices it was saved.

    Raises:
      CheckpointMismatchError: model or optimizer have other variables than the checkpoint.
    """
    training = {"step": abstract.step, "opt_state": abstract.opt_state}
    _compare(path, "variables", arrays.shapes(path / "variables"), abstract.variables)
    _compare(path, "optimizer state", arrays.shapes(path / "training"), training)
    variables = _restore(path / "variables", abstract.variables)
    training = _restore(path / "training", training)
    return TrainState(params=variables.pop("params"), model_state=variables, **training)


def _compare(
    path: epath.Path,
    what: str,
    on_disk: dict[str, jax.ShapeDtypeStruct],
    wanted: Any,
    *,
    allow_more: bool = False,
) -> None:
    in_model = named(without_keys(wanted))
    advice = (
        "The model_dir holds another model: use a new model_dir, which can take what fits by "
        "Estimator(warm_start_from=WarmStart(...)), or change the model back."
    )
    shared = [(name, on_disk[name], leaf) for name, leaf in in_model.items() if name in on_disk]
    differing = [
        f"{name}: {list(found.shape)} in the checkpoint, {list(leaf.shape)} in the model"
        for name, found, leaf in shared
        if found.shape != leaf.shape
    ]
    if differing:
        raise CheckpointMismatchError(
            f"The {what} in {path} differ in shape: {'; '.join(differing)}. {advice}"
        )
    differing = [
        f"{name}: {found.dtype} in the checkpoint, {leaf.dtype} in the model"
        for name, found, leaf in shared
        if found.dtype != leaf.dtype
    ]
    if differing:
        raise CheckpointMismatchError(
            f"The {what} in {path} differ in dtype: {'; '.join(differing)}. Nothing is converted "
            "silently: give the model the dtype of the checkpoint, or use a new model_dir."
        )
    missing = sorted(set(in_model) - set(on_disk))
    if missing:
        raise CheckpointMismatchError(f"The {what} in {path} lack {', '.join(missing)}. {advice}")
    more = sorted(set(on_disk) - set(in_model))
    if more and not allow_more:
        raise CheckpointMismatchError(
            f"The {what} in {path} hold {', '.join(more)}, which the model has not. {advice}"
        )


def _restore(part: epath.Path, abstract: Any) -> Any:
    if not jax.tree.leaves(abstract):
        return abstract  # orbax refuses to restore nothing
    import orbax.checkpoint as ocp

    plain = without_keys(abstract)
    restored = arrays.restore(part, plain, ocp.checkpoint_utils.construct_restore_args(plain))
    return with_keys(abstract, restored)
