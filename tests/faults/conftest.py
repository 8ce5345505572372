"""A server that runs the script, and a run of it that nothing has disturbed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.runs import Server, Trajectory


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """A run to the end from an empty folder.

    Attributes:
      result: what it said.
      examples: of each step.
      secs: that it took, with all programs compiled before.
      file_events: uses of files below model_dir.
      cache_dir: where those programs are.
    """

    result: dict[str, Any]
    examples: dict[int, list[int]]
    secs: float
    file_events: int
    cache_dir: Path


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="session")
def undisturbed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    cache_dir = tmp_path_factory.mktemp("programs")
    Trajectory(server, tmp_path_factory.mktemp("compiling"), cache_dir).end()
    trajectory = Trajectory(server, tmp_path_factory.mktemp("undisturbed"), cache_dir)
    secs = trajectory.run().secs
    file_events = int((trajectory.work_dir / "file_events").read_text())
    return Undisturbed(trajectory.end(), trajectory.examples, secs, file_events, cache_dir)
