"""Checkpoints on disk: what they hold, how they are written, read and compared."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from estimator.state import TrainState
from hooks import LoopView

logger = logging.getLogger(__name__)

LAYOUT = 1
"""Version of the layout `<model_dir>/checkpoints/<step>/{variables,training,run}`."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the cause is attached."""


class CheckpointMismatchError(ValueError):
    """A checkpoint holds other variables than the model has."""


def directory(model_dir: Path) -> Path:
    """Returns where the checkpoints of `model_dir` lie, each in a folder named by its step."""
    return model_dir / "checkpoints"


def latest(model_dir: Path) -> Path | None:
    """Returns the newest whole checkpoint in `model_dir`, or None."""
    folder = directory(model_dir)
    if not folder.is_dir():
        return None
    import orbax.checkpoint as ocp

    steps = ocp.utils.checkpoint_steps(folder)
    return folder / str(max(steps)) if steps else None


def existing(path: str | os.PathLike[str]) -> Path:
    """Returns `path` as the path of a checkpoint.

    Raises:
      FileNotFoundError: there is no whole checkpoint.
    """
    path = Path(path).absolute()
    if not (path / "variables").is_dir():
        raise FileNotFoundError(
            f"There is no checkpoint at {path}. Pass the folder of one, such as what "
            "Estimator.latest_checkpoint() returns."
        )
    return path


def global_step(path: Path) -> int:
    """Returns the global step at which the checkpoint at `path` was taken."""
    return int(_run(path)["global_step"])


def input_position(path: Path) -> Any:
    """Returns where the input stood when the checkpoint was taken, or None."""
    return _run(path)["input_position"]


def _run(path: Path) -> Mapping[str, Any]:
    from orbax.checkpoint import JsonCheckpointHandler

    with _damage_named(path):
        run = JsonCheckpointHandler().restore(epath.Path(path / "run"))
    if run["layout"] != LAYOUT:
        raise CheckpointError(
            f"The checkpoint {path} has the layout {run['layout']}; this version reads {LAYOUT}."
        )
    return run


def variable_shapes(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shape and dtype of the variables in the checkpoint at `path` by name, such as
    `params/Dense_0/kernel`. Needs no device."""
    return _named(_metadata(path / "variables"))


def read_variable(path: Path, name: str) -> np.ndarray:
    """Returns one variable of the checkpoint at `path`.

    Raises:
      KeyError: it has no such variable; lists those that it has.
    """
    metadata = _metadata(path / "variables")
    if name not in _named(metadata):
        raise KeyError(f"{path} has no variable {name!r}. It has {sorted(_named(metadata))}.")
    import orbax.checkpoint as ocp

    only = jax.tree_util.tree_map_with_path(
        lambda key, leaf: leaf if _name(key) == name else ocp.PLACEHOLDER, metadata
    )
    restored = _restore(
        path / "variables",
        only,
        jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata),
    )
    return _named(restored)[name]


def restore_variables(path: Path, abstract: Any) -> Any:
    """Returns the variables that `abstract` names, placed as its shardings say.

    The checkpoint may hold more, such as those of a layer that only training uses.

    Raises:
      CheckpointMismatchError: a variable is missing or has another shape.
    """
    _compare(path, "variables", _metadata(path / "variables"), abstract, allow_more=True)
    return _restore_abstract(path / "variables", abstract)


def restore_train_state(path: Path, abstract: TrainState) -> TrainState:
    """Returns the train state of the checkpoint at `path`, placed as the shardings of
    `abstract` say.

    Raises:
      CheckpointMismatchError: model or optimizer have other variables than the checkpoint.
    """
    training = {"step": abstract.step, "opt_state": abstract.opt_state}
    _compare(path, "variables", _metadata(path / "variables"), abstract.variables)
    _compare(path, "optimizer state", _metadata(path / "training"), training)
    variables = _restore_abstract(path / "variables", abstract.variables)
    training = _restore_abstract(path / "training", training)
    return TrainState(params=variables.pop("params"), model_state=variables, **training)


def _compare(path: Path, what: str, found: Any, wanted: Any, *, allow_more: bool = False) -> None:
    on_disk, in_model = _named(found), _named(_without_keys(wanted))
    advice = "The model_dir holds another model: use a new model_dir, or change the model back."
    differing = [
        f"{name}: {list(on_disk[name].shape)} in the checkpoint, {list(leaf.shape)} in the model"
        for name, leaf in in_model.items()
        if name in on_disk and on_disk[name].shape != leaf.shape
    ]
    if differing:
        raise CheckpointMismatchError(
            f"The {what} in {path} differ in shape: {'; '.join(differing)}. {advice}"
        )
    missing = sorted(set(in_model) - set(on_disk))
    if missing:
        raise CheckpointMismatchError(f"The {what} in {path} lack {', '.join(missing)}. {advice}")
    more = sorted(set(on_disk) - set(in_model))
    if more and not allow_more:
        raise CheckpointMismatchError(
            f"The {what} in {path} hold {', '.join(more)}, which the model has not. {advice}"
        )


def _metadata(path: Path) -> Any:
    from orbax.checkpoint import PyTreeCheckpointHandler

    with _damage_named(path.parent):
        return PyTreeCheckpointHandler().metadata(epath.Path(path)).tree


def _restore_abstract(path: Path, abstract: Any) -> Any:
    if not jax.tree.leaves(abstract):
        return abstract  # orbax refuses to restore nothing
    import orbax.checkpoint as ocp

    plain = _without_keys(abstract)
    restored = _restore(path, plain, ocp.checkpoint_utils.construct_restore_args(plain))

    def with_key(leaf: Any, data: Any) -> Any:
        if not _is_key(leaf):
            return data
        impl = jax.random.key_impl(jax.numpy.empty((), leaf.dtype))
        return jax.random.wrap_key_data(data, impl=impl)

    return jax.tree.map(with_key, abstract, restored)


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _without_keys(tree: Any) -> Any:
    """Returns the tree with the bits of random keys in their place: what is stored of them."""

    def plain(leaf: Any) -> Any:
        if not _is_key(leaf):
            return leaf
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.random.key_data(leaf)
        bits = jax.eval_shape(jax.random.key_data, leaf)
        return jax.ShapeDtypeStruct(bits.shape, bits.dtype, sharding=leaf.sharding)

    return jax.tree.map(plain, tree)


def _restore(path: Path, item: Any, restore_args: Any) -> Any:
    import orbax.checkpoint as ocp

    with _damage_named(path.parent):
        return ocp.PyTreeCheckpointHandler().restore(
            epath.Path(path),
            args=ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True),
        )


@contextlib.contextmanager
def _damage_named(checkpoint: Path) -> Iterator[None]:
    """Turns what orbax raises about files that are missing or cut into what a user can act on."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"The checkpoint {checkpoint} is damaged and cannot be read "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). Remove "
            "that folder, and training goes on from the newest one that is left."
        ) from error


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _named(tree: Any) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


class CheckpointWriter:
    """Writes the checkpoints of one training run in the background (a `hooks.Saver`).

    A checkpoint appears whole or not at all; an old one is removed only after the newer
    one is whole. Leftovers of a writer that was killed are removed at the start.

    Args:
      model_dir: of the run.
      keep_max: newest checkpoints to keep; None keeps all.
      read_state: returns the state as it is between two loops. It is copied to the host
        before `save` returns, so the next loop may take its memory.
    """

    def __init__(self, model_dir: Path, keep_max: int | None, read_state: Callable[[], TrainState]):
        import orbax.checkpoint as ocp

        self._directory = directory(model_dir).absolute()
        self._read_state = read_state
        self._directory.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep_max,
                cleanup_tmp_directories=True,
                # A folder that cannot be made is then an error at once, in the caller's thread.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
            item_names=("variables", "training", "run"),
        )

    def save(self, view: LoopView) -> Path | None:
        """Copies the state to the host and starts to write it; see `hooks.Saver`.

        Raises:
          CheckpointError: this write, or one begun earlier, failed.
        """
        import orbax.checkpoint as ocp

        if self._manager.latest_step() == view.step:
            return None
        state = self._read_state()
        path = self._directory / str(view.step)
        run = {
            "layout": LAYOUT,
            "global_step": view.step,
            "input_position": view.input_position,
        }
        try:
            self._manager.save(
                view.step,
                args=ocp.args.Composite(
                    variables=ocp.args.PyTreeSave(_without_keys(state.variables)),
                    training=ocp.args.PyTreeSave(
                        _without_keys({"step": state.step, "opt_state": state.opt_state})
                    ),
                    run=ocp.args.JsonSave(run),
                ),
                force=True,
            )
        except Exception as error:
            raise self._failure(error) from error
        return path

    def wait(self) -> None:
        """Blocks until every checkpoint that was begun is whole on disk.

        Raises:
          CheckpointError: a write failed.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failure(error) from error

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Waits for what is being written, and releases the writer's threads."""
        try:
            self._manager.close()
        except Exception as failed:
            failure = self._failure(failed)
            if error is None:
                raise failure from failed
            if str(failed) not in str(error):  # the failed write itself may be what ends the run
                error.add_note(str(failure))

    def _failure(self, error: Exception) -> CheckpointError:
        kept = latest(self._directory.parent)
        return CheckpointError(
            f"A checkpoint in {self._directory} could not be written: {type(error).__name__}: "
            f"{error}. The newest whole one is {kept.name if kept else 'none'}."
        )
