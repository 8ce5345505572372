"""Runs of the script that end as they may, and what must be true after each."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.faults.faults import NO_FAULT, Fault
from tests.faults.script import BATCH_SIZE, EXAMPLES, STEPS, Request

LIMIT_SECS = 120

ENDS = {
    "SIGKILL": {-9},
    # Where nothing is being trained or evaluated a signal does what it always does.
    "SIGTERM": {143, -15},
    "SIGINT": {-2},
    "raise": {1},
}
"""Exit codes of a run that a fault has ended."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run has ended.

    Attributes:
      code: its exit code; minus the signal that killed it.
      secs: that it took.
      in_time: whether it ended by itself, and did not have to be killed.
      output: what it wrote to the terminal.
    """

    code: int
    secs: float
    in_time: bool
    output: str


class Server:
    """Starts runs of the script; see `server.py`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server", str(LIMIT_SECS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run(self, request: Request) -> Ended:
        """Runs the script to its end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(request.to_json() + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """Ends the server."""
        self._process.communicate()


class Trajectory:
    """Runs of the script in one work_dir, one after the other, each going on from the last.

    Args:
      server: runs it.
      work_dir: an empty folder.
      cache_dir: of compiled programs.
      options: of every `Request`.

    Attributes:
      examples: of each step, as far as host_call has told.
    """

    def __init__(self, server: Server, work_dir: Path, cache_dir: Path, **options: Any):
        self.work_dir = work_dir
        self._server = server
        self._request = Request(str(work_dir), str(cache_dir), **options)
        self._lines_read = 0
        self.examples: dict[int, list[int]] = {}

    @property
    def latest(self) -> int:
        """The step of the newest checkpoint, 0 if there is none."""
        folder = self.work_dir / "model" / "checkpoints"
        steps = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
        return max(steps, default=0)

    def run(self, fault: Fault = NO_FAULT, **options: Any) -> Ended:
        """Runs the script once, and checks what must be true whatever happens."""
        before = self.latest
        request = dataclasses.replace(self._request, fault=fault, **options)
        ended = self._server.run(request)
        where = f"{fault} ended with {ended.code} after {ended.secs:.1f} s:\n{ended.output}"
        print(where)
        assert ended.in_time, f"It had to be killed after {LIMIT_SECS} s. {where}"
        assert ended.code in ENDS[fault.what] | {0}, where
        assert "The run has not ended" not in ended.output, f"The grace period was over. {where}"
        assert self.latest >= before, f"A checkpoint was lost. {where}"
        steps = self._new_steps()
        assert list(steps) == list(range(before + 1, before + 1 + len(steps))), where
        for step, examples in steps.items():
            assert self.examples.setdefault(step, examples) == examples, where
        if ended.code in ENDS["SIGTERM"] | ENDS["SIGINT"] | {0}:
            assert before + len(steps) <= self.latest, f"Steps were not saved. {where}"
        return ended

    def end(self, **options: Any) -> dict[str, Any]:
        """Runs the script undisturbed; returns its result, in which every example counts once."""
        ended = self.run(**options)
        assert ended.code == 0, ended.output
        result = json.loads((self.work_dir / "result.json").read_text())
        assert result["seen"] == [STEPS * BATCH_SIZE // EXAMPLES] * EXAMPLES
        return result

    def _new_steps(self) -> dict[int, list[int]]:
        """Returns the examples of each step that the last run has told of."""
        path = self.work_dir / "log"
        lines = path.read_text().splitlines()[self._lines_read :] if path.exists() else []
        self._lines_read += len(lines)
        steps = [[int(number) for number in line.split()] for line in lines]
        return {step: examples for step, *examples in steps}
