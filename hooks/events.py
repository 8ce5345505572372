"""Writes TensorBoard event files."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np


class EventWriter:
    """A `Writer` of one event file in a folder; a context manager that closes it.

    Writes in the caller's thread through the parts that tensorboardX is made of. (Its
    `SummaryWriter` hands events over by a process queue, whose thread outlives the writer,
    and registers every writer for the end of the process: too much for one that each
    evaluation opens.)

    Args:
      folder: is made if it is not there.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        from tensorboardX.event_file_writer import EventsWriter

        os.makedirs(folder, exist_ok=True)
        # Two writers of one second would otherwise share a file.
        suffix = f".{os.getpid()}.{uuid.uuid4().hex[:8]}"
        self._events = EventsWriter(os.path.join(folder, "events"), suffix)

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
        """Writes one value of the curve `tag`."""
        from tensorboardX.summary import scalar

        self._add(scalar(tag, scalar_value), global_step)

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: float,
        sum: float,
        sum_squares: float,
        bucket_limits: Sequence[float],
        bucket_counts: Sequence[float],
        global_step: int | None = None,
    ) -> None:
        """Writes a histogram that was taken elsewhere."""
        from tensorboardX.summary import histogram_raw

        summary = histogram_raw(tag, min, max, num, sum, sum_squares, bucket_limits, bucket_counts)
        self._add(summary, global_step)

    def add_image(self, tag: str, image: np.ndarray, global_step: int | None = None) -> None:
        """Writes an image `[height, width]` or `[height, width, channels]` of 1, 3 or 4 channels:
        floats from 0 to 1 (what lies outside is clipped), or uint8."""
        from tensorboardX import summary

        if image.dtype != np.uint8:
            image = np.round(np.clip(np.nan_to_num(image), 0, 1) * 255).astype(np.uint8)
        axes = "HW" if image.ndim == 2 else "HWC"
        self._add(summary.image(tag, image, dataformats=axes), global_step)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        """Writes a text in Markdown."""
        from tensorboardX.summary import text

        self._add(text(tag, text_string), global_step)

    def flush(self) -> None:
        """Makes what was written visible to readers."""
        self._events.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._events.close()

    def _add(self, summary: Any, global_step: int | None) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        event = Event(summary=summary, wall_time=time.time())
        if global_step is not None:
            event.step = int(global_step)
        self._events.write_event(event)
