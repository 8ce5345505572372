"""`python -m estimator.launch --processes 4 script.py`: a job of many processes on this machine.

Each process finds its place in `est.distributed.initialize()`. Their output comes line by line
with the number of the process before it; SIGTERM and Ctrl-C go to all of them, and the second one
kills them; when one fails the others are ended, and the job fails with its exit code. With
`--max-restarts` a failed job starts again, and so from its last checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import IO

# For the others to end by themselves once one has failed: each learns of it from the job, and a
# signal in the middle of its last words would cut them off.
_LAST_WORDS_SECS = 5.0
# For those that still run then to save and end on SIGTERM, before they are killed.
_GRACE_SECS = 15.0
# For the last words of a process that has ended: another one may hold its output open.
_OUTPUT_SECS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code of the job."""
    parser = argparse.ArgumentParser(
        prog="python -m estimator.launch",
        description="Runs a script as a job of many processes on this machine.",
    )
    parser.add_argument("--processes", type=_positive, required=True, help="in the job")
    parser.add_argument(
        "--max-restarts", type=int, default=0, help="of the whole job, after one of them failed"
    )
    parser.add_argument(
        "--devices-per-process",
        type=_positive,
        help="CPU devices of each process; JAX's own if left out",
    )
    parser.add_argument("script", help="a Python file that calls est.distributed.initialize()")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    options = parser.parse_args(arguments)
    command = [sys.executable, options.script, *options.arguments]
    restarts = 0
    while True:
        job = LocalJob(command, options.processes, options.devices_per_process)
        with job:
            code = job.wait()
        if code == 0 or job.stopped_by is not None or restarts >= options.max_restarts:
            return code
        restarts += 1
        print(
            f"[launch] The job failed with exit code {code}: restart {restarts} of "
            f"{options.max_restarts}.",
            file=sys.stderr,
            flush=True,
        )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


class LocalJob:
    """Processes of one job on this machine; a context manager that leaves none behind.

    Args:
      command: of each process.
      count: processes.
      devices: CPU devices of each; None leaves them to JAX.

    Attributes:
      stopped_by: the signal that was passed on to the processes, or None.
    """

    def __init__(self, command: Sequence[str], count: int, devices: int | None):
        self.stopped_by: int | None = None
        self._command = list(command)
        self._count = count
        self._devices = devices
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._ended = threading.Semaphore(0)
        self._before: dict[int, object] = {}

    def __enter__(self) -> LocalJob:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._pass_on)
        address = f"localhost:{_free_port()}"
        for index in range(self._count):
            environment = {
                **os.environ,
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(self._count),
                "JAX_PROCESS_ID": str(index),
                "PYTHONUNBUFFERED": "1",
            }
            if self._devices is not None:
                environment["JAX_NUM_CPU_DEVICES"] = str(self._devices)
            process = subprocess.Popen(
                self._command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # A Ctrl-C of the terminal comes to this process alone, which passes it on once.
                start_new_session=True,
            )
            self._processes.append(process)
            assert process.stdout is not None
            self._readers.append(self._started(self._copy, index, process.stdout))
            self._started(self._await, process)
        return self

    def wait(self) -> int:
        """Returns the exit code of the first process that failed, once all have ended; 0 if none
        did. A failure ends the others: they have 5 seconds to end by themselves, with the reason
        in their own words, then comes SIGTERM, and 15 seconds later SIGKILL."""
        code = 0
        for _ in self._processes:
            self._ended.acquire()
            codes = [process.poll() for process in self._processes]
            failed = [index for index, ended in enumerate(codes) if ended]
            if failed and code == 0:
                code = _exit_code(codes[failed[0]])
                print(
                    f"[launch] Process {failed[0]} ended with exit code {code}.",
                    file=sys.stderr,
                    flush=True,
                )
                self._wait_for_last_words()
                self._end()
        return code

    def __exit__(self, *error: object) -> None:
        self._end()
        for reader in self._readers:
            reader.join(_OUTPUT_SECS)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _wait_for_last_words(self) -> None:
        deadline = time.monotonic() + _LAST_WORDS_SECS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def _end(self) -> None:
        """Asks those that still run to end, and kills those that do not in time."""
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(_GRACE_SECS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        passed_on = number if self.stopped_by is None else signal.SIGKILL
        self.stopped_by = number
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(passed_on)

    def _started(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        return thread

    def _copy(self, index: int, output: IO[str]) -> None:
        for line in output:
            sys.stdout.write(f"[{index}] {line}" if line.endswith("\n") else f"[{index}] {line}\n")
            sys.stdout.flush()

    def _await(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        self._ended.release()


def _exit_code(code: int | None) -> int:
    """Returns an exit code as shells give it: 128 + n for the end by signal n."""
    assert code is not None
    return code if code >= 0 else 128 - code


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return taken.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
