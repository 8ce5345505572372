"""Writes loss, metrics, and histograms for TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hooks import checks
from hooks.base import Every, EverySteps, Hook, HookContext, LoopView, Writer
from hooks.histogram import Histogram


class SummaryHook(Hook):
    """Writes what a run measures, each step with its own number, in the chief process: the loss
    and every metric as scalars, and the histograms of parameters and gradients if the run takes
    them (`RunConfig.save_histograms_steps`), with the norm over all of each as a scalar.

    They are written one loop late, when they are there: the device is never made to wait.

    Args:
      writer: where they go; whoever made it closes it. It is flushed when the run ends. Scalars
        alone go to one that has no `add_histogram_raw`.
      every: when scalars are due. With `EverySteps`, exactly the steps that are multiples are
        written, also those in the middle of a loop; with `EverySecs`, the last step of the loop
        when due. None writes histograms alone.
    """

    def __init__(self, writer: Writer, every: Every | None):
        self._writer = writer
        self._every = None if every is None else checks.every(every)
        self._add_histogram = getattr(writer, "add_histogram_raw", None)
        self._is_chief = True
        self._pending: tuple[LoopView, range] | None = None

    def begin(self, context: HookContext) -> None:
        self._is_chief = context.is_chief
        self._pending = None

    def after_loop(self, view: LoopView) -> None:
        self._write_pending()
        if self._is_chief:
            self._pending = view, self._due_steps(view)

    def _write_pending(self) -> None:
        if self._pending is None:
            return
        (view, steps), self._pending = self._pending, None
        if steps:  # the values are read only if there is a step to write
            series = view.scalars
            for step in steps:
                for name, values in series.items():
                    self._writer.add_scalar(name, float(values[step - view.before - 1]), step)
        if self._add_histogram is not None:
            for step, histograms in view.histograms.items():
                self._write_histograms(self._add_histogram, step, histograms)

    def _write_histograms(
        self, add: Callable[..., Any], step: int, histograms: Mapping[str, Histogram]
    ) -> None:
        squares: dict[str, float] = {}
        for name, histogram in histograms.items():
            add(
                name,
                min=histogram.minimum,
                max=histogram.maximum,
                num=histogram.counts.sum(),
                sum=histogram.total,
                sum_squares=histogram.squares,
                bucket_limits=histogram.upper_edges.tolist(),
                bucket_counts=histogram.counts.tolist(),
                global_step=step,
            )
            what = name.partition("/")[0]
            squares[what] = squares.get(what, 0.0) + histogram.squares
        for what, total in squares.items():
            self._writer.add_scalar(f"norm/{what}", math.sqrt(total), step)

    def end(self, view: LoopView) -> None:
        self._write_pending()
        if self._is_chief:
            self._writer.flush()

    def on_error(self, error: BaseException) -> None:
        try:
            self._write_pending()
        finally:
            if self._is_chief:
                self._writer.flush()

    def _due_steps(self, view: LoopView) -> range:
        if self._every is None:
            return range(0)
        if isinstance(self._every, EverySteps):
            return range(self._every.next_step(view.before), view.step + 1, self._every.steps)
        if self._every.due(view.before, view.step):
            return range(view.step, view.step + 1)
        return range(0)
