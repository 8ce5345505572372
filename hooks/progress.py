"""A progress bar on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from hooks.base import EverySecs, Hook, HookContext, LoopView

_REDRAW_SECS = 0.5


class ProgressHook(Hook):
    """Shows a progress bar with step, remaining time, rate and loss.

    Only in the chief process and only on a terminal: it is silent in a log file. It draws
    between loops, at most twice a second, without a thread of its own, and shows the loss
    of the loop before the last, so that the device never waits for it. What is written
    to `sys.stdout` and `sys.stderr` meanwhile appears above the bar.

    Args:
      stream: where to draw; `sys.stderr` if None.
      clock: returns monotonic seconds; tests pass their own.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._stream = stream
        self._clock = clock
        self._bar: _Bar | None = None

    def begin(self, context: HookContext) -> None:
        stream = sys.stderr if self._stream is None else self._stream
        if context.is_chief and stream.isatty():
            self._bar = _Bar(stream, context, self._clock)

    def after_loop(self, view: LoopView) -> None:
        if self._bar is not None:
            self._bar.advance(view)

    def end(self, view: LoopView) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            try:
                bar.draw(view.step, loss_of=view)
            finally:
                bar.close()

    def on_error(self, error: BaseException) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


class _Bar:
    """The bar of one run. It owns the last line of the terminal until `close`."""

    def __init__(self, stream: TextIO, context: HookContext, clock: Callable[[], float]):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self._redraw = EverySecs(_REDRAW_SECS, clock)
        self._steps = 0
        self._secs = 0.0
        self._previous: LoopView | None = None
        self._progress = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            "{task.fields[rate]}",
            "{task.fields[loss]}",
            console=Console(file=stream, force_terminal=True),
            auto_refresh=False,
            get_time=clock,
            # What goes to a file or a pipe must go on going there.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task = self._progress.add_task(
            context.mode, total=context.last_step, completed=context.step, rate="", loss=""
        )
        self._progress.start()

    def advance(self, view: LoopView) -> None:
        self._steps += view.step - view.before
        self._secs += view.elapsed_secs
        if self._redraw.due(view.before, view.step):
            self.draw(view.step, loss_of=self._previous)
        self._previous = view

    def draw(self, step: int, loss_of: LoopView | None) -> None:
        fields = {}
        if self._secs > 0:
            fields["rate"] = f"{self._steps / self._secs:.4g} steps/s"
            self._steps, self._secs = 0, 0.0
        if loss_of is not None:
            for loss in loss_of.losses[-1:]:  # none in predict
                fields["loss"] = f"loss {loss:.4g}"
        self._progress.update(self._task, completed=step, refresh=True, **fields)

    def close(self) -> None:
        self._progress.stop()
