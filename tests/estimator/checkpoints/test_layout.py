"""Which checkpoints there are, where they may lie, and those that this version does not read."""

from __future__ import annotations

import datetime
import json
import shutil

import pytest

import estimator as est
from estimator import checkpoints
from tests import fakes


def make(model_dir):
    return est.Estimator(
        fakes.mlp,
        model_dir,
        fakes.config(save_checkpoints_steps=2),
        train_batch_size=2,
        eval_batch_size=2,
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A model_dir with checkpoints of the steps 2, 4 and 5; only to be copied."""
    folder = tmp_path_factory.mktemp("original")
    make(folder).train(lambda: fakes.numbered(10))
    return folder


@pytest.fixture
def model_dir(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


def test_checkpoints_are_listed_oldest_first_with_their_times(original):
    listed = est.checkpoints.list(original)
    assert [found.step for found in listed] == [2, 4, 5]
    assert [found.path for found in listed] == [
        checkpoints.directory(original) / str(step) for step in (2, 4, 5)
    ]
    times = [found.written for found in listed]
    assert times == sorted(times)
    assert abs(datetime.datetime.now(datetime.UTC) - times[-1]) < datetime.timedelta(hours=1)


def test_of_a_folder_without_checkpoints_none_are_listed(tmp_path):
    assert est.checkpoints.list(tmp_path) == []
    assert est.checkpoints.list(tmp_path / "nothing") == []


def of_layout(path, layout):
    """Rewrites what the run noted in a checkpoint, as if by another version."""
    notes = path / "run" / "metadata"
    run = json.loads(notes.read_text())
    assert run["layout"] == checkpoints.LAYOUT
    notes.write_text(json.dumps({**run, "layout": layout}))


READERS = {
    "train": lambda model_dir: make(model_dir).train(lambda: fakes.numbered(2)),
    "evaluate": lambda model_dir: make(model_dir).evaluate(lambda: fakes.numbered(2)),
    "get_variable_value": lambda model_dir: make(model_dir).get_variable_value("params/x"),
    "describe": est.checkpoints.describe,
    "load_variables": est.checkpoints.load_variables,
    "warm start": lambda model_dir: est.Estimator(
        fakes.mlp, str(model_dir) + "-new", fakes.config(), None,
        train_batch_size=2, warm_start_from=model_dir,
    ).train(lambda: fakes.numbered(2)),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_the_layout_of_another_version_is_refused_with_words(model_dir, reader):
    of_layout(model_dir / "checkpoints" / "5", 0)
    with pytest.raises(est.CheckpointError, match=r"has the layout 0; this version reads 1\."):
        READERS[reader](model_dir)


@pytest.mark.parametrize("reader", ["train", "evaluate", "describe"])
def test_the_checkpoint_of_another_program_is_refused_and_is_not_called_damaged(model_dir, reader):
    newest = model_dir / "checkpoints" / "5"
    for part in ("variables", "training", "run"):
        shutil.rmtree(newest / part)
    (newest / "default").mkdir()
    with pytest.raises(est.CheckpointError, match=r"no checkpoint of .*default") as caught:
        READERS[reader](model_dir)
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize("address", ["memory://runs/a", "ftp://host/runs"])
def test_an_address_that_nothing_can_be_written_to_is_refused_when_it_is_given(address):
    with pytest.raises(ValueError, match=f"'{address}' is no folder .* gs:// and s3://"):
        make(address)


def test_a_home_and_a_relative_path_are_made_absolute(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert str(checkpoints.as_path("~/run")) == str(checkpoints.as_path("run"))
    assert str(checkpoints.as_path("run")) == str(tmp_path / "run")
    assert str(checkpoints.as_path("gs://bucket/run")) == "gs://bucket/run"
