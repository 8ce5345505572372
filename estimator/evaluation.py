"""One evaluation: every example once, sums on the device, the rest on the host."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimator.errors import Rendezvous
from estimator.infeed import Infeed, Piece
from estimator.job import Job, batch_spec
from estimator.metrics import HostMetrics, MeanOverExamples
from estimator.outfeed import Outfeed
from estimator.outline import Outline
from estimator.preemption import stop_error
from estimator.spec import ModeKeys
from estimator.steps import EvalCarry, EvalOutputs, Frozen, Outputs
from hooks import (
    EventWriter,
    Hook,
    HookContext,
    HookSequence,
    LoopView,
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
    checkpoint: Path | None,
    results_dir: str,
) -> dict[str, Any]:
    """Evaluates `checkpoint` (None: untrained variables) and writes down the results.

    See `Estimator.evaluate` for what is returned and raised.
    """
    mode = ModeKeys.EVAL
    with (
        job.stop_notices() as notices,
        contextlib.closing(job.open_source(input_fn, mode, batch_size)) as source,
    ):
        spec = batch_spec(source)
        job.partition.check(spec)
        frozen, outline = job.frozen(mode, spec, checkpoint)
        all_hooks = [*hooks, *outline.hooks, StopOnNoticeHook(notices)]
        with HookSequence(all_hooks) as sequence:
            with Rendezvous() as rendezvous:
                infeed = job.infeed(source, rendezvous, mode, spec, outline, limit=steps)
                notices.listen(lambda notice: infeed.abandon())
                loop = EvaluationLoop(job, frozen, outline, rendezvous)
                context = job.hook_context(
                    mode,
                    batch_size,
                    step=0,
                    last_step=steps,
                    stop_requested=lambda: notices.first is not None,
                )
                view = loop.run(infeed, sequence, context)
            sequence.end(view)
    if notices.first is not None:
        raise stop_error(notices.first, int(frozen.step), checkpoint)
    if loop.batches == 0:
        logger.warning("A hook stopped the evaluation before its first batch: nothing is measured.")
    elif steps is not None and loop.batches < steps:
        logger.warning(
            "input ended after %d of %d evaluation steps: the results are over all of it.",
            loop.batches,
            steps,
        )
    results = {**loop.results(), "global_step": int(frozen.step)}
    if job.is_chief and loop.batches:
        _record(results_dir, results)
    shown = ", ".join(f"{name} = {value}" for name, value in sorted(results.items()))
    logger.info("Evaluation: %s", shown)
    return results


def _record(folder: str, results: Mapping[str, Any]) -> None:
    """Writes the results that are numbers as TensorBoard events and as a line to read back."""
    step = results["global_step"]
    values = {
        name: value
        for name, value in results.items()
        if isinstance(value, int | float) and name != "global_step"
    }
    with EventWriter(folder) as writer:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    append_eval_result(folder, step, values)


class EvaluationLoop:
    """Evaluates frozen variables over the batches of an infeed.

    Attributes:
      batches: evaluated so far.
    """

    def __init__(self, job: Job, frozen: Frozen, outline: Outline, rendezvous: Rendezvous):
        self.batches = 0
        self._job = job
        self._program = job.programs.evaluate()
        self._frozen = frozen
        self._eval_metrics = outline.eval_metrics
        self._carry = jax.device_put(
            EvalCarry(batch=np.int32(0), merged=outline.empty_metrics()),
            job.placement.replicated,
        )
        self._means = MeanOverExamples()
        self._host_metrics = HostMetrics()
        self._outfeed = Outfeed(rendezvous, "eval outfeed", self._deliver)

    def run(self, infeed: Infeed, hooks: HookSequence, context: HookContext) -> LoopView:
        """Runs to the end of the infeed; returns the view of the last loop, all its outputs
        delivered."""
        steps = self._job.config.steps_per_dispatch
        view = self._view(infeed, self.batches, None, None)
        stop = hooks.begin(context)
        while not stop:
            before = self.batches
            at_most = hooks.loop_end(before, before + steps) - before
            piece = infeed.take(at_most)
            if piece is None:
                break
            self._program.prepare(self._carry, self._frozen, piece.batches)
            if hooks.before_loop(before):
                break
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
            self._outfeed.put(outputs.every_step, piece.rows)
            view = self._view(infeed, before, piece, outputs)
            stop = hooks.after_loop(view)
        self._outfeed.drain()
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

    def _deliver(self, outputs: EvalOutputs, rows: np.ndarray) -> None:
        for index, count in enumerate(rows):
            count = int(count)
            self._means.add("loss", outputs.loss[index], count)
            for name, sums in outputs.metrics.items():
                self._means.add(name, sums[index], count)
            if self._eval_metrics is not None:
                tensors = jax.tree.map(
                    lambda leaf, index=index, count=count: leaf[index, :count], outputs.tensors
                )
                self._host_metrics.add(self._eval_metrics.call(tensors), count)

    def _view(
        self, infeed: Infeed, before: int, piece: Piece | None, outputs: Outputs | None
    ) -> LoopView:
        elapsed_secs, input_wait_secs = infeed.lap()

        def losses() -> np.ndarray:
            if piece is None or outputs is None:
                return np.zeros(0, np.float32)
            return np.asarray(outputs.every_step.loss)[: piece.steps] / piece.rows

        def metrics() -> dict[str, np.ndarray]:
            if piece is None or outputs is None:
                return {}
            return {
                name: np.asarray(sums)[: piece.steps] / piece.rows
                for name, sums in outputs.every_step.metrics.items()
            }

        return LoopView(
            mode=ModeKeys.EVAL,
            model_dir=self._job.model_dir,
            before=before,
            step=self.batches,
            elapsed_secs=elapsed_secs,
            input_wait_secs=input_wait_secs,
            examples=0 if piece is None else int(piece.rows.sum()),
            input_position=None,
            read_losses=functools.cache(losses),
            read_metrics=functools.cache(metrics),
            read_state=lambda: jax.tree.map(jnp.copy, self._frozen.variables),
        )


def _plain(value: Any) -> Any:
    """Returns scalars as Python numbers, and arrays as NumPy's."""
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array
