"""Where the threads of this process are."""

from __future__ import annotations

import sys
import threading
import traceback


def all_stacks() -> str:
    """Returns the stack of each thread, under its name, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)!r}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
