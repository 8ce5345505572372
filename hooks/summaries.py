"""Writes loss, metrics, and histograms for TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hooks.base import Every, LoopView, Writer
from hooks.histogram import Histogram
from hooks.scalars import ScalarsHook


class SummaryHook(ScalarsHook):
    """Writes what a run measures, each step with its own number, in the chief process: the loss
    and every metric as scalars, and the histograms of parameters and gradients if the run takes
    them (`RunConfig.save_histograms_steps`), with the norm over all of each as a scalar.

    They are written one loop late, when they are there: the device is never made to wait.

    Args:
      writer: where they go; whoever made it closes it. It is flushed when the run ends. Scalars
        alone go to one that has no `add_histogram_raw`.
      every: when scalars are due, see `ScalarsHook`. None writes histograms alone.
    """

    def __init__(self, writer: Writer, every: Every | None):
        super().__init__(every)
        self._writer = writer
        self._add_histogram = getattr(writer, "add_histogram_raw", None)

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def write_rest(self, view: LoopView) -> None:
        if self._add_histogram is not None:
            for step, histograms in view.histograms.items():
                self._write_histograms(self._add_histogram, step, histograms)

    def flush(self) -> None:
        self._writer.flush()

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
