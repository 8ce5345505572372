"""One training run: take batches, dispatch, let the hooks look, again."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath

from estimator import checkpoints, training_end
from estimator.bad_variables import first_bad_variable
from estimator.errors import Rendezvous
from estimator.feeding import AnyInfeed, batch_spec, start_infeed
from estimator.histograms import read_due
from estimator.infeed import Piece
from estimator.job import Job
from estimator.loop_length import loop_length
from estimator.loop_start import LoopStart
from estimator.outfeed import Outfeed
from estimator.preemption import stop_error
from estimator.programs import Initializer
from estimator.resuming import resumed_input
from estimator.spec import HostFunction, ModeKeys
from estimator.state import TrainState
from estimator.steps import Outputs
from estimator.train_hooks import with_default_hooks
from estimator.train_step import TrainOutputs
from estimator.watchdog import Doing, Watchdog
from hooks import Hook, HookContext, HookSequence, LoopView, SaveListener, StopNotice, StopNotices
from input_pipeline import Position

logger = logging.getLogger(__name__)

_DISPATCHES_AHEAD = 2


def train(
    job: Job,
    input_fn: Callable[..., Any],
    *,
    batch_size: int,
    hooks: Sequence[Hook],
    saving_listeners: Sequence[SaveListener],
    checkpoint: epath.Path | None,
    warm_start: checkpoints.WarmStart | None,
    first_step: int,
    last_step: int | None,
) -> None:
    """Trains from `checkpoint` (None: from the start, with what `warm_start` takes) to `last_step`
    or the end of the input.

    See `Estimator.train` for what is raised.
    """
    mode = ModeKeys.TRAIN
    if job.hosts.is_chief:
        training_end.clear(job.model_dir)
    with job.hosts.together(), contextlib.ExitStack() as stack:
        notices = stack.enter_context(job.stop_notices())
        # What saves is slow to import, and a compilation leaves the interpreter idle.
        with _importing("orbax.checkpoint"):
            source = resumed_input(job, input_fn, batch_size, checkpoint, notices, stack)
            spec = batch_spec(job, source, mode)
            assert spec is not None
            initializer = job.programs.initializer(mode, spec)
            outline = initializer.outline
            if checkpoint is None:
                state = _first_state(initializer, job.config.seed, warm_start)
            else:
                state = checkpoints.restore_train_state(checkpoint, initializer.abstract)
                logger.info("Training goes on at step %d, from %s.", first_step, checkpoint)
        loop = TrainingLoop(job, state, first_step, last_step)
        all_hooks = stack.enter_context(
            with_default_hooks(
                job, [*hooks, *outline.hooks], saving_listeners, lambda: loop.state, notices
            )
        )
        sequence = stack.enter_context(HookSequence(all_hooks))
        # Named before all else closes: nothing then waits for what needs the lost process.
        stack.enter_context(job.hosts.losses_named())
        with Rendezvous() as rendezvous:
            limit = None if last_step is None else last_step - first_step
            infeed = start_infeed(job, source, rendezvous, mode, spec, outline, limit=limit)
            notices.listen(lambda notice: infeed.abandon())
            outfeed = None
            if outline.host_call is not None and job.hosts.is_chief:
                outfeed = host_call_outfeed(
                    rendezvous, outline.host_call, job.config.host_call_every_n_steps
                )
            context = job.hook_context(
                mode,
                batch_size,
                step=first_step,
                last_step=last_step,
                stop_requested=lambda: notices.first is not None,
            )
            watchdog = job.watchdog(rendezvous)
            view = loop.run(infeed, outfeed, sequence, context, notices, watchdog)
        sequence.end(view)
    if loop.stopped_by is None and job.hosts.is_chief:
        training_end.mark(job.model_dir, loop.step)
    # What came behind the last loop, such as in its save, must not be lost either.
    stopped_by = loop.stopped_by or job.agreed_notice(notices)
    if stopped_by is not None:
        raise stop_error(stopped_by, loop.step, checkpoints.latest(job.model_dir))


@contextlib.contextmanager
def _importing(module: str) -> Iterator[None]:
    """Imports a module beside what is done meanwhile; it is there when this is left."""
    with ThreadPoolExecutor(1, thread_name_prefix="import") as thread:
        imported = thread.submit(importlib.import_module, module)
        yield
    imported.result()


def _first_state(
    initializer: Initializer, seed: int, warm_start: checkpoints.WarmStart | None
) -> TrainState:
    if warm_start is None:
        return initializer(seed)
    # Read first: what does not fit is an error before anything is compiled.
    taken = checkpoints.read_warm_start(warm_start, initializer.abstract.variables)
    state = initializer(seed)
    variables = checkpoints.with_leaves(state.variables, taken)
    params = variables.pop("params")
    # An optimizer may keep the parameters that it begins with, such as to average them.
    opt_state = initializer.optimizer_state(params)
    return TrainState(step=state.step, params=params, model_state=variables, opt_state=opt_state)


class TrainingLoop:
    """Trains from one state until the input or the steps end, or a hook asks to stop.

    Attributes:
      state: the state after what was dispatched so far.
      step: its global step, known without waiting for the device.
      stopped_by: the notice that has ended the run, on this or another process, or None.
    """

    def __init__(self, job: Job, state: TrainState, step: int, last_step: int | None):
        self.state = state
        self.step = step
        self.stopped_by: StopNotice | None = None
        self._last_step = last_step
        self._job = job
        self._histograms_every = job.config.save_histograms_steps
        self._program = job.programs.train()
        self._start: LoopStart | None = None
        self._in_flight: collections.deque[Any] = collections.deque()

    def run(
        self,
        infeed: AnyInfeed,
        outfeed: Outfeed | None,
        hooks: HookSequence,
        context: HookContext,
        notices: StopNotices,
        watchdog: Watchdog,
    ) -> LoopView:
        """Runs loop after loop; returns the view of the last one, all its outputs delivered.

        A notice that comes while it waits for input has ended that wait.
        """
        hosts, last_step = self._job.hosts, self._last_step
        length = loop_length(self._job.config.iterations_per_loop)
        view = self._view(self.step, [], infeed)
        watchdog.begins(Doing.HOOKS)
        stop = hooks.begin(context)
        while last_step is None or self.step < last_step:
            before = self.step
            limit = before + length.steps
            if last_step is not None:
                limit = min(limit, last_step)
            wanted = before if stop else hooks.loop_end(before, limit)
            target = int(hosts.agree(f"loop from step {before}", wanted).min())
            if target == before:
                stop = True
                break
            watchdog.begins(Doing.INPUT)
            piece = infeed.take(target - before)
            if piece is None:
                break
            watchdog.rests()
            self._program.prepare(self.state, (), piece.batches)
            watchdog.begins(Doing.HOOKS)
            stop = hosts.any(f"start at step {before}", hooks.before_loop(before))
            if stop:
                break
            parts = []
            if self._job.config.debug_nans:
                self._start = LoopStart(self._job.programs, before, self.state)
            while piece is not None:
                outputs = self._dispatch(piece, outfeed, watchdog)
                parts.append(_Part(outputs.every_step, piece.steps, piece.examples, piece.position))
                watchdog.begins(Doing.INPUT)
                piece = infeed.take(target - self.step) if self.step < target else None
            if length.learning:
                watchdog.begins(Doing.DEVICES)
                jax.block_until_ready(self.state)
            view = self._view(before, parts, infeed)
            length.observe(self.step - before, view.elapsed_secs)
            watchdog.begins(Doing.HOOKS)
            stop = hooks.after_loop(view)
        self.stopped_by = self._job.agreed_notice(notices)
        stop = stop or self.stopped_by is not None
        if not stop and last_step is not None and self.step < last_step:
            logger.warning(
                "input ended at step %d of %d: training stops there. Use repeat() for an input "
                "that lasts.",
                self.step,
                last_step,
            )
        if outfeed is not None:
            watchdog.begins(Doing.HOST)
            outfeed.drain()
        watchdog.rests()
        return view

    def _dispatch(self, piece: Piece, outfeed: Outfeed | None, watchdog: Watchdog) -> Outputs:
        watchdog.begins(Doing.DEVICES)
        if len(self._in_flight) == _DISPATCHES_AHEAD:
            self._in_flight.popleft().block_until_ready()
        before = self.step
        if self._start is not None:
            self._start.pieces.append(piece)
        self.state, outputs = self._program(
            self.state,
            (),
            piece.batches,
            piece.start,
            piece.stop,
            global_step=before,
            steps_left=piece.steps_left,
        )
        self.step += piece.steps
        self._in_flight.append(outputs.every_step.loss)
        if outfeed is not None:
            watchdog.begins(Doing.HOST)
            outfeed.put(outputs.every_n, range(before + 1, self.step + 1))
        return outputs

    def _view(self, before: int, parts: list[_Part], infeed: AnyInfeed) -> LoopView:
        elapsed_secs, input_wait_secs = infeed.lap()
        state, step, hosts = self.state, self.step, self._job.hosts

        # Programs on the devices of all processes: a hook of one alone would wait for ever.
        def read_state() -> TrainState:
            hosts.agree(f"view.state() at step {step}")
            return jax.tree.map(jax.numpy.copy, state)

        def read_bad_variable() -> str | None:
            hosts.agree(f"view.bad_variable at step {step}")
            return first_bad_variable(state)

        every_step = [(part.outputs, part.steps) for part in parts]
        return LoopView(
            mode=ModeKeys.TRAIN,
            model_dir=self._job.model_dir,
            before=before,
            step=step,
            elapsed_secs=elapsed_secs,
            input_wait_secs=input_wait_secs,
            examples=sum(part.examples for part in parts),
            input_position=parts[-1].position if parts else None,
            read_losses=functools.cache(lambda: _joined([(o.loss, n) for o, n in every_step])),
            read_metrics=functools.cache(lambda: _joined_metrics(every_step)),
            read_state=read_state,
            read_bad_variable=read_bad_variable,
            read_histograms=functools.cache(
                lambda: read_due(before, every_step, self._histograms_every, state.params)
            ),
            trace_step=None if self._start is None else self._start.trace,
        )


class _Part(NamedTuple):
    """What is kept of a dispatch to the end of its loop. Not its batches: a loop may last for an
    hour.

    Attributes:
      outputs: of its steps.
      steps: how many it ran.
      examples: in them.
      position: where the input stands behind them.
    """

    outputs: TrainOutputs
    steps: int
    examples: int
    position: Position | None


def _joined(parts: list[tuple[Any, int]]) -> np.ndarray:
    if not parts:
        return np.zeros(0, np.float32)
    return np.concatenate([np.asarray(values)[:steps] for values, steps in parts])


def _joined_metrics(parts: list[tuple[TrainOutputs, int]]) -> Mapping[str, np.ndarray]:
    names = parts[0][0].metrics if parts else ()
    return {name: _joined([(o.metrics[name], steps) for o, steps in parts]) for name in names}


def host_call_outfeed(
    rendezvous: Rendezvous, host_call: HostFunction, every_n_steps: int
) -> Outfeed:
    """Starts the thread that calls `host_call` for every step that is a multiple of
    `every_n_steps`, in order."""
    takes_step = host_call.takes("step")

    def deliver(tensors: Any, steps: range) -> None:
        due = [step for step in steps if step % every_n_steps == 0]
        for index, step in enumerate(due):
            values = jax.tree.map(lambda stacked, index=index: stacked[index], tensors)
            if takes_step:
                host_call.call(values, step=step)
            else:
                host_call.call(values)

    return Outfeed(rendezvous, "host_call", deliver)
