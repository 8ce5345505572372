"""Reads TensorBoard's event files back, without TensorBoard."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def values_in(folder: str | Path) -> Iterator[tuple[int, Any]]:
    """Yields (step, value) of all that was written to the files in `folder`; a value has a `tag`,
    and a `simple_value`, a `histo`, an `image` or a `tensor`."""
    from tensorboardX.proto import event_pb2

    parse = event_pb2.Event.FromString  # pyright: ignore[reportAttributeAccessIssue]
    for path in sorted(Path(folder).glob("*tfevents*")):
        content = path.read_bytes()
        while content:  # a record is: length (8 bytes), its CRC (4), the event, its CRC (4)
            (length,) = struct.unpack("<Q", content[:8])
            event = parse(content[12 : 12 + length])
            content = content[16 + length :]
            for value in event.summary.value:
                yield event.step, value


def scalars_in(folder: str | Path) -> dict[tuple[str, int], float]:
    """Returns {(tag, step): value} of the scalars in `folder`."""
    return {
        (value.tag, step): value.simple_value
        for step, value in values_in(folder)
        if value.WhichOneof("value") == "simple_value"
    }
