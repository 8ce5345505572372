"""Jobs of several processes on this machine, which end in time and leave none behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_SECS = 240
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """A job that has ended.

    Attributes:
      code: its exit code.
      output: of all its processes.
      results: what each process wrote down; None for one that did not.
    """

    code: int
    output: str
    results: list[Any]


def run_job(
    script: str,
    *arguments: Any,
    processes: int,
    results_dir: Path,
    options: Sequence[str] = (),
) -> Ended:
    """Runs a script of this folder as a job, with more `options` of the launcher; ends it and
    fails if it takes too long."""
    results_dir.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "estimator.launch", "--processes", str(processes)),
        *options,
        *(str(Path(__file__).parent / script), str(results_dir), *map(str, arguments)),
    ]
    job = subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = job.communicate(timeout=LIMIT_SECS)
    except subprocess.TimeoutExpired:
        for _ in range(2):  # the second one kills its processes
            job.send_signal(signal.SIGTERM)
        job.communicate()
        raise
    paths = [results_dir / f"{index}.json" for index in range(processes)]
    results = [json.loads(path.read_text()) if path.exists() else None for path in paths]
    return Ended(code=job.returncode, output=output, results=results)


def run_apart(
    script: str, *arguments: Any, processes: int, results_dir: Path
) -> list[tuple[int, str]]:
    """Runs a script of this folder as processes that no launcher watches, as those on machines of
    their own; returns the exit code and the output of each."""
    results_dir.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [sys.executable, Path(__file__).parent / script, results_dir, *map(str, arguments)],
            env={
                **ENVIRONMENT,
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(processes),
                "JAX_PROCESS_ID": str(index),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_SECS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.wait(), output) for process, output in zip(started, outputs, strict=True)]
