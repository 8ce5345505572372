"""Writes TensorBoard event files."""

from __future__ import annotations

import contextlib
import importlib.abc
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """Lets what this thread imports in the body believe that a library is not installed, unless
    it was imported before.

    tensorboardX imports torch where it finds it, only to name its tensors in signatures; that
    takes as long as all else that a training run imports.
    """
    thread = threading.get_ident()

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: object, target: object = None) -> None:
            if fullname == name and threading.get_ident() == thread:
                raise ModuleNotFoundError(f"{name} is not needed here", name=name)

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class EventWriter:
    """A `Writer` of one event file in a folder; a context manager that closes it.

    Writes in the caller's thread through the parts that tensorboardX is made of. (Its
    `SummaryWriter` hands events over by a process queue, whose thread outlives the writer,
    and registers every writer for the end of the process: too much for one that each
    evaluation opens.)

    What is written for one step, one thing after the other, becomes one event: that takes less
    than half the time. Readers see it once another step is written and `flush_secs` are over.

    Args:
      folder: is made if it is not there.
      flush_secs: how old what readers see may become while more is written.
      clock: returns monotonic seconds; tests pass their own.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        flush_secs: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        with _without("torch"):
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2

        self._make_event = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
        self._event: Any = None
        self._flush_secs = flush_secs
        self._clock = clock
        self._flushed = clock()
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
        # By hand, since this comes often: tensorboardX takes ten times longer over it.
        self._summary(global_step).value.add(tag=tag, simple_value=float(scalar_value))

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

        self._summary(global_step).MergeFrom(
            histogram_raw(tag, min, max, num, sum, sum_squares, bucket_limits, bucket_counts)
        )

    def add_image(self, tag: str, image: np.ndarray, global_step: int | None = None) -> None:
        """Writes an image `[height, width]` or `[height, width, channels]` of 1, 3 or 4 channels:
        floats from 0 to 1 (what lies outside is clipped), or uint8."""
        from tensorboardX import summary

        if image.dtype != np.uint8:
            image = np.round(np.clip(np.nan_to_num(image), 0, 1) * 255).astype(np.uint8)
        axes = "HW" if image.ndim == 2 else "HWC"
        self._summary(global_step).MergeFrom(summary.image(tag, image, dataformats=axes))

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        """Writes a text in Markdown."""
        from tensorboardX.summary import text

        self._summary(global_step).MergeFrom(text(tag, text_string))

    def flush(self) -> None:
        """Makes what was written visible to readers."""
        self._write_event()
        self._events.flush()
        self._flushed = self._clock()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._write_event()
        self._events.close()

    def _summary(self, global_step: int | None) -> Any:
        """Returns the values that are gathered for a step."""
        step = 0 if global_step is None else int(global_step)
        if self._event is not None and self._event.step != step:
            self._write_event()
            if self._clock() - self._flushed >= self._flush_secs:
                self.flush()
        if self._event is None:
            self._event = self._make_event(wall_time=time.time(), step=step)
        return self._event.summary

    def _write_event(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            self._events.write_event(event)
