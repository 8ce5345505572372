"""Writes checkpoints behind the back of training."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from etils import epath

from estimator.checkpoints.layout import CheckpointError, directory, latest, run_notes
from estimator.checkpoints.quiet import hush_orbax
from estimator.checkpoints.retention import PreservationPolicy
from estimator.checkpoints.trees import without_keys
from estimator.hosts import HostLostError
from estimator.state import TrainState
from hooks import LoopView, Writer

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes the checkpoints of one training run in the background (a `hooks.Saver`).

    A checkpoint appears whole or not at all; an old one is removed only after the newer
    one is whole. Leftovers of a writer that was killed are removed at the start.

    For how long the loop stood still for checkpoints is logged at the end: from the moment when
    the devices had nothing left to do. That of each is the scalar `checkpoint_stall_secs`.

    Args:
      model_dir: of the run.
      read_state: returns the state as it is between two loops. It is copied to the host
        before `save` returns, so the next loop may take its memory.
      read_position: returns where the input stands (JSON).
      keep: which checkpoints stay when there is a new one.
      writer: where the scalars go, if anywhere; whoever made it closes it.
      clock: returns monotonic seconds; tests pass their own.
    """

    def __init__(
        self,
        model_dir: epath.Path,
        read_state: Callable[[], TrainState],
        read_position: Callable[[LoopView], Any],
        keep: PreservationPolicy,
        writer: Writer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        import orbax.checkpoint as ocp

        hush_orbax()
        self._directory = directory(model_dir)
        self._read_state = read_state
        self._read_position = read_position
        self._writer = writer
        self._clock = clock
        self._begun: epath.Path | None = None
        self._count = 0
        self._stall_secs = 0.0
        self._directory.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=keep,
                cleanup_tmp_directories=True,
                # A folder that cannot be made is then an error at once, in the caller's thread.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
            # Trained weights compress by less than a tenth, and to find that out takes five times
            # as much of the processors, which the loop needs, as to write them.
            item_handlers={
                "variables": ocp.PyTreeCheckpointHandler(use_compression=False),
                "training": ocp.PyTreeCheckpointHandler(use_compression=False),
                "run": ocp.JsonCheckpointHandler(),
            },
        )

    def save(self, view: LoopView) -> epath.Path | None:
        """Copies the state to the host and starts to write it; see `hooks.Saver`.

        Raises:
          CheckpointError: this write, or one begun earlier, failed.
        """
        import orbax.checkpoint as ocp

        if self._manager.latest_step() == view.step:
            return None
        state = self._read_state()
        jax.block_until_ready(state)  # these are steps, and no stall
        began = self._clock()
        self.wait()  # so that a failure is told of the checkpoint that failed
        path = self._begun = self._directory / str(view.step)
        with self._failures_named():
            self._manager.save(
                view.step,
                args=ocp.args.Composite(
                    variables=ocp.args.PyTreeSave(without_keys(state.variables)),
                    training=ocp.args.PyTreeSave(
                        without_keys({"step": state.step, "opt_state": state.opt_state})
                    ),
                    run=ocp.args.JsonSave(run_notes(view.step, self._read_position(view))),
                ),
                force=True,
            )
        stall_secs = self._clock() - began
        self._count += 1
        self._stall_secs += stall_secs
        if self._writer is not None:
            self._writer.add_scalar("checkpoint_stall_secs", stall_secs, view.step)
        return path

    def wait(self) -> None:
        """Blocks until every checkpoint that was begun is whole on disk.

        Raises:
          CheckpointError: a write failed.
        """
        with self._failures_named():
            self._manager.wait_until_finished()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Waits for what is being written, also after an error: it was begun before and is good.

        Only the loss of another process is not waited for: the checkpoint needs it, and JAX
        ends this process too some seconds later.
        """
        if error is None:
            self._close()
        elif not isinstance(error, HostLostError):
            try:
                self._close()
            except BaseException as failure:
                # Even a Ctrl-C here only ends the waiting: `error` is what the caller must see.
                if failure is not error and str(failure.__cause__) not in str(error):
                    error.add_note(str(failure) or type(failure).__name__)
        if self._count:
            logger.info(
                "%d checkpoints: the loop stood still for %.3f s in all to hand them over.",
                self._count,
                self._stall_secs,
            )

    def _close(self) -> None:
        with self._failures_named():
            self._manager.close()

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kept = latest(self._directory.parent)
            raise CheckpointError(
                f"The checkpoint {self._begun} could not be written: {type(error).__name__}: "
                f"{error}. The newest whole one is {kept.name if kept else 'none'}."
            ) from error
