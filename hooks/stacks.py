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
    stacks = [
        list(traceback.walk_stack(frames[thread.ident]))
        for thread in threads
        if thread.ident in frames
    ]
    if not stacks:
        return "its end"
    return _named(next(filter(None, map(_users_call, stacks)), stacks[0][0]))


def place_of_error(error: BaseException) -> str | None:
    """Returns the innermost place in code of the user's that `error` came by, or None."""
    call = _users_call(list(traceback.walk_tb(error.__traceback__))[::-1])
    return None if call is None else _named(call)


_Call = tuple[FrameType, int | None]
"""A frame, and the line that it is at."""


def _users_call(calls: Iterable[_Call]) -> _Call | None:
    """Returns the first of `calls`, the innermost first, that is in code of the user's."""
    return next((call for call in calls if _is_the_users(call[0].f_code.co_filename)), None)


def _named(call: _Call) -> str:
    frame, line = call
    return f"{frame.f_code.co_filename}:{line} ({frame.f_code.co_name})"


def _is_the_users(path: str) -> bool:
    return not path.startswith(("<frozen", *_NOT_THE_USERS))
