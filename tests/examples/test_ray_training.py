"""The lesson on Ray: a job of actors gives the numbers of one process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples import ray_training

ROOT = Path(ray_training.__file__).parents[1]
STEPS = 60

SCRIPT = """
import json, sys
from examples import ray_training
losses = ray_training.main(sys.argv[2:])
open(sys.argv[1], "w").write(json.dumps(losses))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: pip install 'jax-estimator[ray]'",
)
def test_two_actors_train_as_one_process_does(tmp_path):
    results = tmp_path / "losses.json"
    options = ["--processes", "2", "--max-steps", str(STEPS), "--model-dir", str(tmp_path / "two")]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),  # of the actors too
        "JAX_PLATFORMS": "cpu",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": "120000",  # a busy machine starts Ray slowly
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(results), *options],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    assert "2 processes: loss" in done.stdout

    alone = ray_training.train(str(tmp_path / "one"), STEPS)
    np.testing.assert_allclose(json.loads(results.read_text()), alone, rtol=1e-5, atol=1e-6)


def test_one_process_trains_with_the_same_function(tmp_path):
    losses = ray_training.train(str(tmp_path), max_steps=STEPS)

    assert len(losses) == STEPS
    assert np.mean(losses[-10:]) < 0.75 * np.mean(losses[:10])
