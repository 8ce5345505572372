"""A process finds the cluster that schedulers describe in its environment."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_SECS = 180
JAX_PORTS = range(65535 - 2**12 + 1, 65536)  # where JAX puts the coordinators of schedulers' jobs


def free_port() -> int:
    for port in JAX_PORTS:
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("localhost", port))
            return port
    raise AssertionError("no port is free")


def slurm(index: int, port: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(port - JAX_PORTS.start),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index),
        "SLURM_LOCALID": str(index),
    }


def open_mpi(index: int, port: int) -> dict[str, str]:
    job = (port - JAX_PORTS.start) * 2**12
    return {
        "OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(index),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
    }


def tf_config(index: int, port: int) -> dict[str, str]:
    cluster = {"chief": [f"localhost:{port}"], "worker": ["localhost:1"]}
    task = {"type": ("chief", "worker")[index], "index": 0}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


@pytest.mark.parametrize(
    "described",
    [slurm, pytest.param(open_mpi, marks=pytest.mark.slow), tf_config],
)
def test_processes_join(described):
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, Path(__file__).parent / "joining.py"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "JAX_PLATFORMS": "cpu",
                **described(index, port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_SECS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for index, output in enumerate(outputs):
        assert f"place {index} 2 worker {index}" in output.splitlines(), output
