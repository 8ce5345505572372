"""The contestants' processes, as the one that asks them sees them."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.contest import Contest, Contestant, run_rounds

ROOT = Path(__file__).parent.parent
_PATIENCE_SECS = 600.0


class NotInstalledError(Exception):
    """A contestant lacks a library, or its whole environment."""


class Worker:
    """A process of `benchmarks.worker`. A context manager, which ends it.

    Args:
      python: the interpreter of its environment.
      contest: name of the module of the contest.
      name: of the contestant.
    """

    def __init__(self, python: str, contest: str, name: str):
        self._name = f"{contest}, {name}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", contest, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def ready(self) -> dict[str, str]:
        """Waits until the contestant is made; returns the versions of its libraries.

        Raises:
          NotInstalledError: it lacks a library.
        """
        answer = self._answer()
        if "missing" in answer:
            raise NotInstalledError(answer["missing"])
        return answer["versions"]

    def measure(self, secs: float) -> float:
        """Returns what the contestant measures in about `secs` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{secs}\n".encode())
        self._process.stdin.flush()
        return self._answer()["measured"]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], _PATIENCE_SECS)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            ended = "ended" if readable else f"said nothing for {_PATIENCE_SECS:g} s"
            self._process.kill()
            self._log.seek(0)
            log = self._log.read().decode(errors="replace")
            raise RuntimeError(f"The process of {self._name} {ended}. Its log:\n{log[-5000:]}")
        return json.loads(line)


def secs_until_ready(python: str, contest: str, name: str) -> float:
    """Returns how long a new process takes until the contestant is made."""
    started = time.perf_counter()
    with Worker(python, contest, name) as worker:
        worker.ready()
        return time.perf_counter() - started


class Outcome:
    """What became of a contest.

    Attributes:
      measured: for each contestant that took part, what was measured in each round.
      absent: why the others did not.
      versions: of the libraries, by environment.
    """

    def __init__(self) -> None:
        self.measured: dict[str, list[float]] = {}
        self.absent: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}


def run(
    name: str, contest: Contest, pythons: Mapping[str, str | None], rounds: int, secs: float
) -> Outcome:
    """Holds a contest.

    Args:
      name: of its module.
      contest: what is in it.
      pythons: the interpreter of each environment; None where there is none.
      rounds: that each contestant is measured in.
      secs: that one measurement lasts, about.
    """
    outcome = Outcome()

    @contextlib.contextmanager
    def opened(contestant: Contestant) -> Iterator[Any]:
        python = pythons[contestant.environment]
        if python is None:
            raise NotInstalledError(f"there is no environment with {contestant.environment}")
        with Worker(python, name, contestant.name) as worker:
            versions = outcome.versions.setdefault(contestant.environment, {})
            versions.update(worker.ready())
            if not contestant.fresh:
                yield lambda: worker.measure(secs)
                return
        yield lambda: secs_until_ready(python, name, contestant.name)

    with contextlib.ExitStack() as stack:
        measures = {}
        for contestant in contest.contestants:
            try:
                measures[contestant.name] = stack.enter_context(opened(contestant))
            except NotInstalledError as error:
                outcome.absent[contestant.name] = str(error)
        outcome.measured = run_rounds(measures, rounds)
    return outcome
