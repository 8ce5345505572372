"""Runs that are hit at random: whatever happens, a rerun gives what an undisturbed run gives.

`make test-faults` runs many more of them than the suite does.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.faults import WHAT, Fault
from tests.faults.runs import Trajectory

pytestmark = pytest.mark.slow

FAULTS_PER_TRAJECTORY = 3
TRAJECTORIES = int(os.environ.get("FAULT_TRAJECTORIES", "7"))

CALLS = {
    "model_fn": 6,
    "input_fn": 3,
    "map": 100,
    "host_call": 30,
    "metric_fn": 6,
    "predict": 24,
    "hook.before_loop": 8,
    "hook.after_loop": 8,
    "hook.before_save": 4,
    "hook.after_save": 4,
    "trained": 1,
    "evaluated": 1,
}
"""How often an undisturbed run comes by each point, or about that."""


def random_fault(rng: random.Random, secs: float, file_events: int) -> Fault:
    where = rng.choice(["file", "file", "time", "time", "call"])
    if where == "time":
        # A thread that only waits has nothing to raise.
        return Fault(where, rng.randint(1, int(secs * 1000)), rng.choice(WHAT[:3]))
    if where == "file":
        return Fault(where, rng.randint(1, file_events), rng.choice(WHAT))
    where = rng.choice(list(CALLS))
    return Fault(where, rng.randint(1, CALLS[where]), rng.choice(WHAT))


@pytest.mark.parametrize("seed", range(TRAJECTORIES))
def test_after_any_faults_a_rerun_gives_the_bits_of_an_undisturbed_run(
    seed, server, undisturbed, tmp_path
):
    rng = random.Random(seed)
    trajectory = Trajectory(server, tmp_path, undisturbed.cache_dir)
    for _ in range(FAULTS_PER_TRAJECTORY):
        fault = random_fault(rng, undisturbed.secs, undisturbed.file_events)
        trajectory.run(fault, schedule=rng.choice(["apart", "together"]))

    assert trajectory.end() == undisturbed.result
    assert trajectory.examples.items() <= undisturbed.examples.items()
