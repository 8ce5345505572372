"""One evaluation: every example once, sums on the device, the rest on the host."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from estimator import checkpoints
from estimator.errors import Rendezvous
from estimator.feeding import AnyInfeed, batch_spec, start_infeed
from estimator.infeed import Piece
from estimator.job import Job
from estimator.metrics import HostMetrics, MeanOverExamples
from estimator.opening import open_input
from estimator.outfeed import Outfeed
from estimator.outline import Outline
from estimator.preemption import stop_error
from estimator.spec import ModeKeys
from estimator.steps import EvalCarry, EvalOutputs, Frozen, Outputs
from estimator.watchdog import Doing
from hooks import (
    EventWriter,
    Hook,
    HookContext,
    HookSequence,
    LoopView,
    StopNotice,
    StopNotices,
    StopOnNoticeHook,
    append_eval_result,
)

logger = logging.getLogger(__name__)


def evaluate(
    job: Job,
    input_fn: Callable[..., Any],
    *,
    batch_size: int,
    steps: int | None,
    hooks: Sequence[Hook],
    checkpoint: epath.Path | None,
    results_dir: str,
) -> dict[str, Any]:
    """Evaluates `checkpoint` (None: untrained variables) and writes down the results.

    See `Estimator.evaluate` for what is returned and raised.
    """
    mode = ModeKeys.EVAL
    with job.hosts.together(), contextlib.ExitStack() as stack:
        notices = stack.enter_context(job.stop_notices())
        source = open_input(
            job,
            lambda: stack.enter_context(
                contextlib.closing(job.open_source(input_fn, mode, batch_size))
            ),
            checkpoint,
            notices,
        )
        spec = batch_spec(job, source, mode)
        assert spec is not None
        frozen, outline = job.frozen(mode, spec, checkpoint)
        all_hooks = [*hooks, *outline.hooks, StopOnNoticeHook(notices)]
        with HookSequence(all_hooks) as sequence:
            with Rendezvous() as rendezvous:
                infeed = start_infeed(job, source, rendezvous, mode, spec, outline, limit=steps)
                notices.listen(lambda notice: infeed.abandon())
                loop = EvaluationLoop(job, frozen, outline, rendezvous)
                context = job.hook_context(
                    mode,
                    batch_size,
                    step=0,
                    last_step=steps,
                    stop_requested=lambda: notices.first is not None,
                )
                view = loop.run(infeed, sequence, context, notices)
            sequence.end(view)
    # What came behind the last loop, while metrics were still computed, must not be lost either.
    stopped_by = loop.stopped_by or job.agreed_notice(notices)
    if stopped_by is not None:
        raise stop_error(stopped_by, int(frozen.step), checkpoint)
    if loop.batches == 0:
        logger.warning("A hook stopped the evaluation before its first batch: nothing is measured.")
    elif steps is not None and loop.batches < steps:
        logger.warning(
            "input ended after %d of %d evaluation steps: the results are over all of it.",
            loop.batches,
            steps,
        )
    results = {**loop.results(), "global_step": int(frozen.step)}
    if job.hosts.is_chief and loop.batches:
        _record(results_dir, results, of_this_model=_is_of(job, checkpoint))
    shown = ", ".join(f"{name} = {value}" for name, value in sorted(results.items()))
    logger.info("Evaluation: %s", shown)
    return results


def _is_of(job: Job, checkpoint: epath.Path | None) -> bool:
    return checkpoint is None or checkpoint.parent == checkpoints.directory(job.model_dir)


def _record(folder: str, results: Mapping[str, Any], *, of_this_model: bool) -> None:
    """Writes the results that are numbers as TensorBoard events and as a line to read back; the
    latter tells of a step only what the checkpoint of this model_dir at that step is worth."""
    step = results["global_step"]
    values = {
        name: value
        for name, value in results.items()
        if isinstance(value, int | float) and name != "global_step"
    }
    with EventWriter(folder) as writer:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    if of_this_model:
        append_eval_result(folder, step, values)


class EvaluationLoop:
    """Evaluates frozen variables over the batches of an infeed.

    Attributes:
      batches: evaluated so far.
      stopped_by: the notice that has ended the run, on this or another process, or None.
    """

    def __init__(self, job: Job, frozen: Frozen, outline: Outline, rendezvous: Rendezvous):
        self.batches = 0
        self.stopped_by: StopNotice | None = None
        self._job = job
        self._program = job.programs.evaluate()
        self._frozen = frozen
        self._eval_metrics = outline.eval_metrics
        self._carry = job.placement.replicate(
            EvalCarry(batch=np.int32(0), merged=outline.empty_metrics())
        )
        self._means = MeanOverExamples()
        self._host_metrics = HostMetrics()
        self._outfeed = Outfeed(rendezvous, "eval outfeed", self._deliver)
        self._watchdog = job.watchdog(rendezvous)

    def run(
        self,
        infeed: AnyInfeed,
        hooks: HookSequence,
        context: HookContext,
        notices: StopNotices,
    ) -> LoopView:
        """Runs to the end of the infeed; returns the view of the last loop, all its outputs
        delivered."""
        hosts, steps, watchdog = (
            self._job.hosts,
            self._job.config.steps_per_dispatch,
            self._watchdog,
        )
        view = self._view(infeed, self.batches, None, None)
        watchdog.begins(Doing.HOOKS)
        stop = hooks.begin(context)
        while True:
            before = self.batches
            wanted = before if stop else hooks.loop_end(before, before + steps)
            target = int(hosts.agree(f"evaluation of batch {before}", wanted).min())
            if target == before:
                break
            watchdog.begins(Doing.INPUT)
            piece = infeed.take(target - before)
            if piece is None:
                break
            watchdog.rests()
            self._program.prepare(self._carry, self._frozen, piece.batches)
            watchdog.begins(Doing.HOOKS)
            if hosts.any(f"start of batch {before}", hooks.before_loop(before)):
                break
            watchdog.begins(Doing.DEVICES)
            self._carry, outputs = self._program(
                self._carry,
                self._frozen,
                piece.batches,
                piece.start,
                piece.stop,
                global_step=before,
                steps_left=piece.steps_left,
            )
            self.batches += piece.steps
            watchdog.begins(Doing.HOST)
            self._outfeed.put(outputs.every_step, piece.steps)
            view = self._view(infeed, before, piece, outputs)
            watchdog.begins(Doing.HOOKS)
            stop = hooks.after_loop(view)
        self.stopped_by = self._job.agreed_notice(notices)
        watchdog.begins(Doing.HOST)
        self._outfeed.drain()
        watchdog.rests()
        return view

    def results(self) -> dict[str, Any]:
        """Returns loss and metrics over all examples, once the run has ended without error.

        Raises:
          ValueError: two metrics share a name.
        """
        device = self._means.compute()
        device |= {name: metric.compute() for name, metric in self._carry.merged.items()}
        host = self._host_metrics.compute()
        if shared := set(device) & set(host) or {"global_step"} & set(host):
            raise ValueError(
                f"eval_metrics returned {sorted(shared)}, names that loss, global_step or metrics "
                "already have. Rename them."
            )
        return {name: _plain(value) for name, value in (device | host).items()}

    def _deliver(self, outputs: EvalOutputs, steps: int) -> None:
        for index in range(steps):
            count = int(outputs.rows[index])
            self._means.add("loss", outputs.loss[index], count)
            for name, sums in outputs.metrics.items():
                self._means.add(name, sums[index], count)
            if self._eval_metrics is not None:
                tensors = jax.tree.map(lambda leaf, index=index: leaf[index], outputs.tensors)
                if outputs.mask is not None and not (real := outputs.mask[index]).all():
                    tensors = jax.tree.map(lambda leaf, real=real: leaf[real], tensors)
                self._host_metrics.add(self._eval_metrics.call(tensors), count)

    def _view(
        self,
        infeed: AnyInfeed,
        before: int,
        piece: Piece | None,
        outputs: Outputs | None,
    ) -> LoopView:
        elapsed_secs, input_wait_secs = infeed.lap()
        steps = 0 if piece is None else piece.steps  # a view does not keep the batches

        def losses() -> np.ndarray:
            if outputs is None:
                return np.zeros(0, np.float32)
            return _per_row(outputs.every_step.loss, outputs, steps)

        def metrics() -> dict[str, np.ndarray]:
            if outputs is None:
                return {}
            return {
                name: _per_row(sums, outputs, steps)
                for name, sums in outputs.every_step.metrics.items()
            }

        return LoopView(
            mode=ModeKeys.EVAL,
            model_dir=self._job.model_dir,
            before=before,
            step=self.batches,
            elapsed_secs=elapsed_secs,
            input_wait_secs=input_wait_secs,
            examples=0 if piece is None else piece.examples,
            input_position=None,
            read_losses=functools.cache(losses),
            read_metrics=functools.cache(metrics),
            read_state=lambda: jax.tree.map(jnp.copy, self._frozen.variables),
        )


def _per_row(sums: Any, outputs: Outputs, steps: int) -> np.ndarray:
    """Returns the means of steps from sums over their real examples."""
    return np.asarray(sums)[:steps] / np.asarray(outputs.every_step.rows)[:steps]


def _plain(value: Any) -> Any:
    """Returns scalars as Python numbers, and arrays as NumPy's."""
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array
