"""What is kept beside the arrays works in a bucket too, which has neither links nor appends."""

from __future__ import annotations

import fsspec
import pytest
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem

import estimator as est
from estimator import checkpoints, training_end
from hooks import EvalResult, SaveOnFile, append_eval_result, eval_dir, read_eval_results


class Bucket(MemoryFileSystem):
    """Stands for s3:// in memory."""

    protocol = "s3"
    store = {}  # noqa: RUF012  (of the class, as that of its base)
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("s3://", "memory://"))


@pytest.fixture
def model_dir():
    # No test needs a real s3://, so this one may stay registered.
    fsspec.register_implementation("s3", Bucket, clobber=True)
    yield checkpoints.as_path("s3://bucket/run")
    Bucket.store.clear()
    Bucket.pseudo_dirs[:] = [""]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_one_writer_at_a_time(model_dir):
    with checkpoints.sole_writer(model_dir) as hook:
        assert names_in(model_dir) == ["writer.lock"]
        hook.before_save(None)
        with pytest.raises(est.WriterConflictError, match="s3://bucket/run"):
            checkpoints.sole_writer(model_dir).__enter__()
    assert not (model_dir / "writer.lock").exists()


def test_results_of_evaluations_are_added_to_those_that_are_there(model_dir):
    folder = eval_dir(model_dir)
    for step in (1, 2):
        append_eval_result(folder, step, {"loss": step / 2}, clock=lambda: 7.0)
    assert read_eval_results(folder) == [
        EvalResult(global_step=1, values={"loss": 0.5}, wall_time=7.0),
        EvalResult(global_step=2, values={"loss": 1.0}, wall_time=7.0),
    ]


def test_the_end_of_training_is_marked_and_cleared(model_dir):
    training_end.mark(model_dir, 5)
    assert training_end.ended_at(model_dir) == 5
    training_end.clear(model_dir)
    assert training_end.ended_at(model_dir) is None


def test_a_file_asks_for_a_checkpoint(model_dir):
    asked = model_dir / "save_now"
    asked.write_text("")
    ticks = iter(range(0, 100, 10))
    request = SaveOnFile(asked, lambda: next(ticks))
    assert request.pending()
    request.served()
    assert not request.pending()


def test_a_bucket_without_checkpoints_has_none(model_dir):
    assert est.checkpoints.list(model_dir) == []
    assert checkpoints.latest(model_dir) is None
    with pytest.raises(FileNotFoundError, match="s3://bucket/run"):
        est.checkpoints.describe(model_dir)


def test_an_address_stays_one(model_dir):
    assert isinstance(model_dir, epath.Path)
    assert str(checkpoints.directory(model_dir)) == "s3://bucket/run/checkpoints"
