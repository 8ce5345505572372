"""Writes TensorBoard event files."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any


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
