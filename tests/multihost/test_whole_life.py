"""A job of several processes gives the numbers of one process."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import estimator as est
from tests.fakes import config, dataset, mlp, numbered
from tests.multihost.jobs import run_job

STEPS = 30
ROWS = 13


class Losses(est.hooks.Hook):
    """Keeps the losses of all steps."""

    def __init__(self):
        self.seen: list[float] = []

    def after_loop(self, view):
        self.seen.extend(view.losses.tolist())


@pytest.fixture(
    scope="module",
    params=[
        (2, "per_host"),
        (2, "sliced"),
        pytest.param((2, "per_replica"), marks=pytest.mark.slow),
        pytest.param((2, "broadcast"), marks=pytest.mark.slow),
        pytest.param((4, "per_host"), marks=pytest.mark.slow),
    ],
)
def job(request, tmp_path_factory):
    """A job that has trained, evaluated and predicted, and its model_dir."""
    processes, deployment = request.param
    model_dir = tmp_path_factory.mktemp("model")
    results_dir = tmp_path_factory.mktemp("results")
    job = run_job(
        "whole_life.py",
        model_dir,
        STEPS,
        deployment,
        processes=processes,
        results_dir=results_dir,
    )
    assert job.code == 0, job.output
    return job, model_dir


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same in this process, and what it saw."""
    losses, calls = Losses(), []

    def host_call(id, loss, step):
        calls.append((step, sorted(id.tolist())))

    model = est.Estimator(
        mlp,
        tmp_path_factory.mktemp("alone"),
        config(),
        params={"host_call": host_call},
        train_batch_size=8,
        eval_batch_size=4,
        predict_batch_size=4,
    )
    model.train(lambda: dataset(40).shuffle(seed=0).repeat(), max_steps=STEPS, hooks=[losses])
    return model, losses.seen, calls


def test_training_has_the_losses_of_one_process(job, alone):
    results = job[0].results
    for result in results:
        np.testing.assert_allclose(result["losses"], alone[1], rtol=1e-5)


def test_host_call_runs_on_process_0_alone_with_the_batch_of_all(job, alone):
    first, *others = job[0].results
    assert [(step, ids) for step, ids, _ in first["host_call"]] == alone[2]
    assert all(result["host_call"] == [] for result in others)


def test_evaluation_counts_the_uneven_rows_of_each_process_once(job, alone):
    expected = alone[0].evaluate(lambda: numbered(ROWS))
    for result in job[0].results:
        assert result["evaluation"] == pytest.approx(expected, rel=1e-5)
        assert result["last evaluation"] == pytest.approx(expected, rel=1e-5)


def test_exports_are_written_by_process_0_and_known_to_all(job, alone):
    first, *others = job[0].results
    assert all(result["exports"] == first["exports"] for result in others)
    assert all(result["export"] == first["export"] for result in others)
    features, _ = numbered(ROWS)
    expected = [float(p["output"]) for p in alone[0].predict(lambda: numbered(ROWS))]
    for path in (first["export"], first["exports"]["best"]):
        assert len(list(Path(path).parent.iterdir())) <= 3  # the steps 10, 20 and 30
        served = est.export.load(path)["serving_default"]({"x": features["x"]})["output"]
        np.testing.assert_allclose(served, expected, rtol=1e-4, atol=1e-6)


def test_summaries_are_written_by_process_0(job):
    for folder, runs in ((job[1], 1), (job[1] / "eval", STEPS // 10 + 1)):
        assert len(list(folder.glob("events.out.tfevents.*"))) == runs


def test_the_processes_predict_each_row_once(job, alone):
    expected = [float(p["output"]) for p in alone[0].predict(lambda: numbered(ROWS))]
    own = [value for result in job[0].results for value in result["own"]]
    assert sorted(own) == pytest.approx(sorted(expected), rel=1e-4, abs=1e-6)


def test_gathered_predictions_come_once_each_on_process_0(job, alone):
    expected = [float(p["output"]) for p in alone[0].predict(lambda: numbered(ROWS))]
    first, *others = job[0].results
    assert sorted(first["gathered"]) == pytest.approx(sorted(expected), rel=1e-4, abs=1e-6)
    assert all(result["gathered"] == [] for result in others)


def test_one_process_goes_on_from_the_checkpoint_of_many(job, tmp_path):
    shutil.copytree(job[1], tmp_path / "resumed")

    def losses_of(folder):
        losses = Losses()
        model = est.Estimator(mlp, tmp_path / folder, config(), train_batch_size=8)
        model.train(
            lambda: dataset(40).shuffle(seed=0).repeat(), max_steps=STEPS + 9, hooks=[losses]
        )
        return losses.seen

    np.testing.assert_allclose(losses_of("resumed"), losses_of("unbroken")[STEPS:], rtol=1e-4)
