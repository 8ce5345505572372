"""Records what host and devices do during some steps."""

from __future__ import annotations

import logging
import os

import jax

from hooks import checks
from hooks.base import Hook, HookContext, LoopView

logger = logging.getLogger(__name__)


class ProfilerHook(Hook):
    """Traces an exact window of steps with `jax.profiler`, to be seen in TensorBoard or XProf; and
    in Perfetto: `perfetto_trace.json.gz` in the folder of the trace opens in ui.perfetto.dev. (With
    many processes it is not written; the `.trace.json.gz` of each host is.)

    Loops are cut at both ends of the window, and the device has finished what came before
    when the trace starts, and what belongs to it when the trace stops. For train and
    evaluate; in predict there are no losses to wait for, so the edges are not exact.

    Args:
      start_step: global step after which the trace starts, so that the first step in it is
        `start_step + 1`. Not 0, unless the time to compile is of interest. A run that starts
        later, such as a resumed one, is not traced.
      num_steps: steps in the trace. Keep it small: traces are large.
      output_dir: where the trace goes.
    """

    def __init__(self, start_step: int, num_steps: int, output_dir: str | os.PathLike[str]):
        self._start = 0 if start_step == 0 else checks.positive_int("start_step", start_step)
        self._stop = self._start + checks.positive_int("num_steps", num_steps)
        self._output_dir = os.fspath(output_dir)
        self._missed = False
        self._tracing = False

    def begin(self, context: HookContext) -> None:
        self._missed = context.step > self._start
        if self._missed:
            logger.info(
                "No profile: the run starts at step %d, and start_step is %d.",
                context.step,
                self._start,
            )

    def next_step(self, step: int) -> int | None:
        if self._missed or step >= self._stop:
            return None
        return self._start if step < self._start else self._stop

    def before_loop(self, step: int) -> None:
        if step == self._start and not self._missed:
            # JAX makes it of the only trace in the folder: several hosts may write theirs there.
            perfetto = jax.process_count() == 1
            jax.profiler.start_trace(self._output_dir, create_perfetto_trace=perfetto)
            self._tracing = True

    def after_loop(self, view: LoopView) -> None:
        if view.step == self._start or (self._tracing and view.step >= self._stop):
            self._wait_for_device(view)
        if self._tracing and view.step >= self._stop:
            self._stop_trace()

    def end(self, view: LoopView) -> None:
        if self._tracing:
            self._wait_for_device(view)
            self._stop_trace()

    def on_error(self, error: BaseException) -> None:
        if self._tracing:
            self._stop_trace()

    def _wait_for_device(self, view: LoopView) -> None:
        _ = view.losses  # the last thing that a loop computes

    def _stop_trace(self) -> None:
        self._tracing = False
        jax.profiler.stop_trace()
        logger.info("Profile written to %s", self._output_dir)
