"""Where the threads of this process are."""

from __future__ import annotations

import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

_HERE = Path(__file__).resolve().parents[1]
_NOT_THE_USERS = (
    *(str(_HERE / package) + "/" for package in ("estimator", "hooks", "input_pipeline")),
    *(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def all_stacks() -> str:
    """Returns the stack of each thread, under its name, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)!r}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def place_of(threads: Iterable[threading.Thread]) -> str:
    """Returns where the first of `threads` is that is in code of the user's, such as
    "/home/me/data.py:17 (read)"; where the first of them is if none is."""
    frames = sys._current_frames()
    stacks = [frames[thread.ident] for thread in threads if thread.ident in frames]
    if not stacks:
        return "its end"
    innermost = (next(filter(_is_the_users, _outward(frame)), None) for frame in stacks)
    frame = next(filter(None, innermost), stacks[0])
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def _outward(frame: FrameType | None) -> Iterable[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_the_users(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return not path.startswith(("<frozen", *_NOT_THE_USERS))
