"""Runs the script again and again at the price of a fork instead of a start of Python.

Reads a Request in each line of its input, and answers with the exit status of its run. All is
imported before, and nothing has been started: no thread, no device. So a run is a process like any
other, from the first line of the script to the end of the interpreter.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

import orbax.checkpoint  # noqa: F401  (late in a run, which would then be slower)
import tensorboardX  # noqa: F401

from tests.faults import script


def serve(limit_secs: float) -> script.Request | None:
    """Returns None at the end of the input; in the process of a run, its request."""
    for line in sys.stdin:
        request = script.Request.from_json(line)
        started = time.monotonic()
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(write_end, 1)
            os.dup2(write_end, 2)
            os.close(write_end)
            os.close(read_end)
            return request
        os.close(write_end)
        output, in_time = _read_to_the_end(read_end, started + limit_secs, pid)
        answer = {
            "code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
            "secs": time.monotonic() - started,
            "in_time": in_time,
            "output": output,
        }
        print(json.dumps(answer), flush=True)
    return None


def _read_to_the_end(read_end: int, deadline: float, pid: int) -> tuple[str, bool]:
    """Returns what comes through the pipe until nobody is left to write; whether that was so
    before the deadline, at which the process is killed."""
    chunks: list[bytes] = []
    in_time = True
    while True:
        left = max(0.0, deadline - time.monotonic()) if in_time else None
        if not select.select([read_end], [], [], left)[0]:
            in_time = False
            os.kill(pid, signal.SIGKILL)
        elif chunk := os.read(read_end, 65536):
            chunks.append(chunk)
        else:
            os.close(read_end)
            return b"".join(chunks).decode(errors="replace"), in_time


if (wanted := serve(float(sys.argv[1]))) is not None:
    script.run(wanted)
