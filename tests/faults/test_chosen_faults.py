"""Runs that are hit where it hurts most."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults.faults import Fault, InjectedError
from tests.faults.runs import Trajectory
from tests.faults.script import STEPS, Request

pytestmark = pytest.mark.slow

NOBODY = 65534


@pytest.fixture
def trajectory(server, undisturbed, tmp_path):
    return Trajectory(server, tmp_path, undisturbed.cache_dir)


@pytest.fixture
def with_a_checkpoint(trajectory):
    """One that stands at a step between the first and the last."""
    assert trajectory.run(Fault("hook.after_loop", 3, "SIGTERM")).code == 143
    assert 0 < trajectory.latest < STEPS
    return trajectory


@pytest.mark.parametrize("what", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_in_the_first_compilation(server, undisturbed, tmp_path, what):
    (tmp_path / "run").mkdir()
    cold = Trajectory(server, tmp_path / "run", tmp_path / "no programs yet")
    # The first trace is that of the variables, the second that of the loop.
    ended = cold.run(Fault("model_fn", 2, what))

    assert ended.code in {-9, 143, -2}
    assert cold.latest == 0
    assert cold.end() == undisturbed.result


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_killed_where_a_save_is_committed(trajectory, undisturbed, nth):
    ended = trajectory.run(Fault("os.rename", nth, "SIGKILL"))

    assert ended.code == -9
    assert trajectory.end() == undisturbed.result


@pytest.mark.parametrize("what", ["SIGTERM", "SIGINT"])
def test_told_to_stop_in_a_save(trajectory, undisturbed, what):
    ended = trajectory.run(Fault("os.mkdir", 5, what))

    assert ended.code in {143, -2}
    assert 0 < trajectory.latest < STEPS
    assert trajectory.end() == undisturbed.result


@pytest.mark.parametrize("what", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_between_the_last_save_and_the_evaluation(trajectory, undisturbed, what):
    assert trajectory.run(Fault("trained", 1, what)).code in {-9, -15, -2}
    assert trajectory.latest == STEPS
    assert trajectory.end() == undisturbed.result


def test_told_to_stop_in_the_evaluation(trajectory, undisturbed):
    assert trajectory.run(Fault("metric_fn", 2, "SIGTERM")).code == 143
    assert trajectory.latest == STEPS
    assert trajectory.end() == undisturbed.result


@pytest.mark.parametrize("what", ["SIGKILL", "SIGTERM", "SIGINT"])
@pytest.mark.parametrize(
    ("where", "nth", "step"),
    [
        ("hook.before_loop", 2, 5),  # the first loop has run
        ("map", 30, None),  # on a thread of the input
        ("host_call", 9, None),  # on the thread of the outfeed, in the loop behind the first save
        ("metric_fn", 9, 16),  # in the evaluation of the second checkpoint
        ("hook.after_save", 2, 16),
    ],
)
def test_train_and_evaluate(trajectory, undisturbed, where, nth, step, what):
    ended = trajectory.run(Fault(where, nth, what), schedule="together")

    assert ended.code in {-9, 143, -2}
    if what != "SIGKILL" and step is not None:
        assert trajectory.latest == step
    assert trajectory.end(schedule="together") == undisturbed.result


def test_told_to_stop_while_predictions_are_used(trajectory, undisturbed):
    # Nothing can be lost there: the signal does what it always does.
    assert trajectory.run(Fault("predict", 5, "SIGTERM")).code == -15
    assert trajectory.end() == undisturbed.result


@pytest.mark.parametrize("what", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_while_a_checkpoint_is_restored(with_a_checkpoint, undisturbed, what):
    step = with_a_checkpoint.latest
    ended = with_a_checkpoint.run(Fault("file", 12, what))

    assert ended.code in {-9, 143, -2}
    assert with_a_checkpoint.latest == step
    assert with_a_checkpoint.end() == undisturbed.result


def test_an_error_of_any_function_of_the_users_is_raised_as_itself_and_loses_nothing(
    trajectory, undisturbed
):
    points = [
        ("model_fn", 1),
        ("model_fn", 2),
        ("input_fn", 1),
        ("map", 1),
        ("hook.begin", 1),
        ("hook.before_save", 1),
        ("hook.after_save", 1),
        ("host_call", 2),
        ("hook.before_loop", 2),
        ("hook.after_loop", 2),
        ("map", 50),
        ("hook.end", 1),
        ("metric_fn", 2),
        ("predict", 3),
    ]
    for where, nth in points:
        fault = Fault(where, nth, "raise")
        ended = trajectory.run(fault)
        assert ended.code == 1, fault
        assert f"{InjectedError.__module__}.InjectedError: {fault}" in ended.output.splitlines()

    assert trajectory.end() == undisturbed.result


def test_a_file_that_cannot_grow(with_a_checkpoint, undisturbed):
    step = with_a_checkpoint.latest
    ended = with_a_checkpoint.run(Fault(what="raise"), file_bytes=300)

    assert ended.code == 1
    assert "CheckpointError: The checkpoint " in ended.output
    assert f"The newest whole one is {step}." in ended.output
    assert with_a_checkpoint.latest == step
    assert with_a_checkpoint.end() == undisturbed.result


def test_a_disk_that_is_full(server, undisturbed, tmp_path):
    mounted = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        trajectory = Trajectory(server, tmp_path, undisturbed.cache_dir)
        trajectory.run(Fault("hook.after_loop", 3, "SIGTERM"))
        step, filler = trajectory.latest, tmp_path / "filler"
        with pytest.raises(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)
        os.truncate(filler, filler.stat().st_size - 3 * 4096)  # for what the run has to say
        ended = trajectory.run(Fault(what="raise"))

        assert ended.code == 1
        assert "CheckpointError: The checkpoint " in ended.output
        assert trajectory.latest == step
        filler.unlink()
        assert trajectory.end() == undisturbed.result
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_folder_that_may_not_be_written(server, undisturbed):
    with tempfile.TemporaryDirectory() as name:
        work_dir = Path(name)
        user = NOBODY if os.geteuid() == 0 else 0
        trajectory = Trajectory(server, work_dir, work_dir / "programs")
        trajectory.run(Fault("hook.after_loop", 3, "SIGTERM"))
        step, checkpoints = trajectory.latest, work_dir / "model" / "checkpoints"
        for path in [work_dir, *work_dir.rglob("*")]:
            path.chmod(0o777)
        checkpoints.chmod(0o555)
        ended = trajectory.run(Fault(what="raise"), user=user)
        checkpoints.chmod(0o755)

        assert ended.code == 1
        assert "Permission denied" in ended.output and str(checkpoints) in ended.output
        assert trajectory.latest == step
        assert trajectory.end() == undisturbed.result


@pytest.mark.parametrize(("what", "code"), [("SIGTERM", 143), ("SIGINT", -2), ("SIGKILL", -9)])
def test_a_script_that_is_started_by_itself_ends_in_the_same_way(
    server, undisturbed, tmp_path, what, code
):
    fault = Fault("hook.after_loop", 3, what)
    request = Request(str(tmp_path), str(undisturbed.cache_dir), fault)
    started = subprocess.run(
        [sys.executable, "-m", "tests.faults.script", request.to_json()],
        cwd=Path(__file__).parents[2],
        timeout=120,
    )

    assert started.returncode == code
    assert Trajectory(server, tmp_path, undisturbed.cache_dir).latest == (8 if code == -9 else 13)
