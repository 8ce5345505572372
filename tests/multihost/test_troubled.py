"""What goes wrong on one process of a job ends all of them in time, in words; a rerun goes on."""

from __future__ import annotations

import re
import signal

import numpy as np
import pytest

import estimator as est
from tests.fakes import config, dataset, mlp
from tests.multihost.jobs import Ended, run_apart, run_job
from tests.multihost.troubled import STEPS, Losses

PROCESSES = 2


def job_with(trouble: str, tmp_path, *options: str) -> Ended:
    return run_job(
        "troubled.py",
        tmp_path / "model",
        trouble,
        processes=PROCESSES,
        results_dir=tmp_path / "results",
        options=options,
    )


def losses_of(model_dir) -> dict[int, float]:
    """Trains in model_dir to the last step, in this process alone."""
    losses = Losses()
    model = est.Estimator(mlp, model_dir, config(), train_batch_size=8)
    model.train(lambda: dataset(40).repeat(), max_steps=STEPS, hooks=[losses])
    return losses.of_step


def of_process(index: int, output: str) -> str:
    """Returns what one process wrote."""
    return "\n".join(re.findall(rf"^\[{index}\] (.*)$", output, flags=re.MULTILINE))


@pytest.mark.parametrize("trouble", ["raises", "input_raises"])
def test_an_error_on_one_process_ends_all_by_its_own_words(trouble, tmp_path):
    job = job_with(trouble, tmp_path)
    assert job.code == 1
    assert "ValueError: bad record 17" in of_process(1, job.output).splitlines()
    assert "HostError: process 1 of 2 failed: ValueError: bad record 17" in of_process(
        0, job.output
    )


def test_a_hook_that_asks_to_stop_on_one_process_stops_all_at_its_step(tmp_path):
    job = job_with("asks_to_stop", tmp_path)
    assert job.code == 0, job.output
    for seen in job.results:
        assert list(map(int, seen)) == list(range(1, 8))


@pytest.mark.parametrize(
    ("trouble", "place"),
    [
        ("reads_state_on_process_0", "view.state() at step 7"),
        ("evaluates_on_process_0", "the input is open"),
        ("exports_on_process_0", "export of 5"),
    ],
)
def test_what_needs_all_processes_is_refused_on_one_and_both_places_are_named(
    trouble, place, tmp_path
):
    job = job_with(trouble, tmp_path)
    assert job.code == 1
    for index in range(PROCESSES):
        own = of_process(index, job.output)
        assert f"process 0 is at '{place}" in own
        assert "process 1 is at '" in own


def test_processes_with_different_checkpoints_do_not_start(tmp_path):
    model = est.Estimator(mlp, tmp_path / "model" / "1", config(), train_batch_size=8)
    model.train(lambda: dataset(40), steps=2)
    job = job_with("other_model_dir", tmp_path)
    assert job.code == 1
    assert "The processes found the steps [0, 2]" in of_process(0, job.output)
    assert "It must be a folder that all of them see" in of_process(1, job.output)


def test_an_input_that_sticks_is_found_by_the_watchdog_and_told_to_all(tmp_path):
    job = job_with("input_sticks", tmp_path)
    assert job.code == 1
    words = "WatchdogError: input_fn has not given a batch for 5 s"
    assert words in of_process(1, job.output)
    assert f"process 1 of 2 failed: {words}" in of_process(0, job.output)


def test_training_on_the_devices_of_one_process_is_refused(tmp_path):
    job = job_with("each_alone", tmp_path)
    assert job.code == 1
    for index in range(PROCESSES):
        assert "ValueError: The devices are those of one process of 2" in of_process(
            index, job.output
        )


@pytest.mark.parametrize(
    ("trouble", "first_steps"), [("is_killed", [6]), ("is_killed_in_a_save", [1, 6])]
)
def test_a_killed_process_is_named_and_the_job_restarted_from_the_last_checkpoint(
    trouble, first_steps, tmp_path
):
    job = job_with(trouble, tmp_path, "--max-restarts", "1")
    assert job.code == 0, job.output
    assert "Process 0 of 2 has lost the connection to process 1" in of_process(0, job.output)
    assert "[launch] Process 1 ended with exit code 137." in job.output
    assert "restart 1 of 1" in job.output
    # What it had seen of the steps after the checkpoint is lost, and trained again.
    expected = losses_of(tmp_path / "alone")
    for seen in job.results:
        assert list(map(int, seen)) in [list(range(first, STEPS + 1)) for first in first_steps]
        for step, loss in seen.items():
            np.testing.assert_allclose(loss, expected[int(step)], rtol=1e-5)


@pytest.mark.parametrize(("trouble", "killed"), [("is_killed", 1), ("is_killed_as_process_0", 0)])
def test_without_a_launcher_the_death_of_a_process_ends_the_other_in_words(
    trouble, killed, tmp_path
):
    ended = run_apart(
        "troubled.py", tmp_path / "model", trouble, processes=2, results_dir=tmp_path / "results"
    )
    assert ended[killed][0] == -signal.SIGKILL
    code, output = ended[1 - killed]
    assert code not in (0, None), output  # JAX aborts a process that lost its coordinator
    assert f"Process {1 - killed} of 2 has lost the connection to process {killed}" in output
    assert est.checkpoints.latest(tmp_path / "model").name == "5"
    assert list(losses_of(tmp_path / "model")) == list(range(6, STEPS + 1))


def test_a_notice_to_one_process_saves_and_ends_all_and_another_number_goes_on(tmp_path):
    job = job_with("is_terminated", tmp_path)
    assert job.code == 143, job.output
    assert est.checkpoints.latest(tmp_path / "model").name == "7"
    rest = losses_of(tmp_path / "model")
    assert list(rest) == list(range(8, STEPS + 1))
    expected = losses_of(tmp_path / "alone")
    for step, loss in rest.items():
        np.testing.assert_allclose(loss, expected[step], rtol=1e-5)
