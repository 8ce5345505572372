"""One writer at a time, and words for a folder that cannot be written."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import os
import socket
import subprocess
import sys
import threading

import pytest
from etils import epath

import estimator as est
from estimator.checkpoints import sole_writer
from estimator.checkpoints.holder import Holder
from estimator.checkpoints.lock import keep_renewed
from tests import fakes


def leave_lock(model_dir, **changed):
    """Leaves the lock that this process would leave, with some of it changed."""
    holder = dataclasses.replace(Holder.this_process(), **changed)
    (model_dir / "writer.lock").write_text(json.dumps(dataclasses.asdict(holder)))


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_second_writer_is_refused_with_the_name_of_the_first(tmp_path):
    with (
        sole_writer(tmp_path),
        pytest.raises(est.WriterConflictError) as caught,
        sole_writer(tmp_path),
    ):
        pass
    for words in (str(os.getpid()), socket.gethostname(), str(tmp_path), "another model_dir"):
        assert words in str(caught.value)


def test_the_lock_is_given_back_even_by_an_error(tmp_path):
    with pytest.raises(KeyError), sole_writer(tmp_path):
        raise KeyError
    assert names_in(tmp_path) == []
    with sole_writer(tmp_path):
        assert names_in(tmp_path) == ["writer.lock"]


def test_the_lock_of_a_process_that_has_died_is_taken_over(tmp_path, caplog):
    pid = dead_process()
    leave_lock(tmp_path, pid=pid)
    with caplog.at_level("WARNING", "estimator"), sole_writer(tmp_path):
        assert json.loads((tmp_path / "writer.lock").read_text())["pid"] == os.getpid()
        assert names_in(tmp_path) == ["writer.lock"]
    assert f"Process {pid}" in caplog.text and "dead" in caplog.text


def test_a_process_that_has_the_pid_of_a_dead_one_does_not_keep_its_lock(tmp_path):
    leave_lock(tmp_path, started="1")
    with sole_writer(tmp_path):
        pass


class Waits:
    """Stands for `time.sleep`: after so many seconds in all, something happens.

    Attributes:
      secs: waited for so far.
    """

    def __init__(self, after=math.inf, happens=lambda: None):
        self.secs = 0.0
        self._after, self._happens = after, happens

    def __call__(self, secs):
        before, self.secs = self.secs, self.secs + secs
        if before < self._after <= self.secs:
            self._happens()


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()])
def test_a_lock_of_another_machine_that_is_renewed_is_respected(tmp_path, host):
    # A container may have the name of another, and processes of the same numbers.
    leave_lock(tmp_path, host=host, place="elsewhere", pid=dead_process())
    lives = Waits(10, lambda: os.utime(tmp_path / "writer.lock", (0, 0)))
    with pytest.raises(est.WriterConflictError, match=rf"on {host} .* delete .*writer\.lock"):
        sole_writer(tmp_path, lives).__enter__()
    assert lives.secs == 10


def test_a_lock_of_another_machine_that_nobody_renews_is_taken_over(tmp_path, caplog):
    leave_lock(tmp_path, host="elsewhere", place="elsewhere")
    nothing = Waits()
    with caplog.at_level("INFO", "estimator"), sole_writer(tmp_path, nothing):
        assert json.loads((tmp_path / "writer.lock").read_text())["host"] == socket.gethostname()
        assert names_in(tmp_path) == ["writer.lock"]
    assert nothing.secs == 25
    assert "on elsewhere has" in caplog.text and "waiting for up to 25 s" in caplog.text
    assert "is dead" in caplog.text


def test_a_lock_of_another_machine_that_is_given_back_meanwhile_is_free(tmp_path):
    leave_lock(tmp_path, host="elsewhere", place="elsewhere")
    ends = Waits(3, (tmp_path / "writer.lock").unlink)
    with sole_writer(tmp_path, ends):
        assert ends.secs == 3


class Rounds:
    """Stands for an event that is set after so many looks at it."""

    def __init__(self, count):
        self.left = count

    def wait(self, secs):
        self.left -= 1
        return self.left < 0


def test_the_time_of_a_lock_is_renewed_while_it_is_held(tmp_path):
    lock = tmp_path / "writer.lock"
    with sole_writer(tmp_path) as hook:
        os.utime(lock, (0, 0))
        keep_renewed(epath.Path(lock), hook.holder, Rounds(1))
        assert lock.stat().st_mtime > 0


def test_the_lock_of_another_is_not_renewed(tmp_path):
    lock = tmp_path / "writer.lock"
    leave_lock(tmp_path)
    os.utime(lock, (0, 0))
    keep_renewed(epath.Path(lock), Holder.this_process(), Rounds(3))
    assert lock.stat().st_mtime == 0


def test_what_a_process_left_that_was_killed_on_its_way_to_the_lock_is_removed(tmp_path):
    leave_lock(tmp_path, pid=dead_process())
    (tmp_path / "writer.lock").rename(tmp_path / "writer.lock.1234")
    with sole_writer(tmp_path):
        assert names_in(tmp_path) == ["writer.lock"]


def test_a_lock_that_says_nothing_is_not_taken_over(tmp_path):
    (tmp_path / "writer.lock").write_text("mine")
    with pytest.raises(est.WriterConflictError, match="does not say which process"):
        sole_writer(tmp_path).__enter__()


def test_who_lost_the_lock_does_not_take_away_that_of_another(tmp_path):
    with sole_writer(tmp_path):
        (tmp_path / "writer.lock").unlink()
        leave_lock(tmp_path, host="elsewhere")
    assert names_in(tmp_path) == ["writer.lock"]


def test_of_many_that_start_at_once_over_a_dead_lock_one_gets_in(tmp_path):
    leave_lock(tmp_path, pid=dead_process())
    together, outcomes = threading.Barrier(8), []
    over = threading.Event()

    def note(outcome):
        outcomes.append(outcome)
        if len(outcomes) == 8:
            over.set()

    def enter():
        together.wait()
        try:
            with sole_writer(tmp_path):
                note("in")
                over.wait(60)
        except est.WriterConflictError:
            note("refused")

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["in"] + ["refused"] * 7
    assert names_in(tmp_path) == []


def test_the_slower_of_two_that_find_a_holder_dead_leaves_the_lock_of_the_quicker(
    tmp_path, monkeypatch
):
    leave_lock(tmp_path, pid=dead_process())

    def waits_for_the_quicker(file, how):
        (tmp_path / "writer.lock").unlink()
        leave_lock(tmp_path, host="quicker")

    monkeypatch.setattr(fcntl, "flock", waits_for_the_quicker)
    with pytest.raises(est.WriterConflictError, match="on quicker"):
        sole_writer(tmp_path).__enter__()
    assert json.loads((tmp_path / "writer.lock").read_text())["host"] == "quicker"
    assert names_in(tmp_path) == ["writer.lock"]


def test_a_lock_is_taken_over_on_a_file_system_that_locks_no_files(tmp_path, monkeypatch):
    def not_here(file, how):
        raise OSError("Function not implemented")

    monkeypatch.setattr(fcntl, "flock", not_here)
    leave_lock(tmp_path, pid=dead_process())
    with sole_writer(tmp_path) as hook:
        assert json.loads((tmp_path / "writer.lock").read_text())["nonce"] == hook.holder.nonce
    assert names_in(tmp_path) == []


def make(model_dir):
    return est.Estimator(fakes.mlp, model_dir, fakes.config(), train_batch_size=2)


def test_training_holds_the_lock_and_evaluating_and_predicting_need_none(tmp_path):
    estimator = est.Estimator(
        fakes.mlp, tmp_path, fakes.config(), train_batch_size=2, eval_batch_size=2
    )
    estimator.train(lambda: fakes.numbered(2))
    with sole_writer(tmp_path):
        with pytest.raises(est.WriterConflictError):
            estimator.train(lambda: fakes.numbered(2))
        assert estimator.evaluate(lambda: fakes.numbered(2))["global_step"] == 1
    estimator.train(lambda: fakes.numbered(2))
    assert fakes.latest_step(estimator) == 2


def test_a_run_whose_lock_was_taken_over_saves_nothing_more(tmp_path):
    def lose(view):
        if view.step == 4:
            leave_lock(tmp_path, host="elsewhere", place="elsewhere", pid=7)

    estimator = est.Estimator(
        fakes.mlp,
        tmp_path,
        fakes.config(save_checkpoints_steps=2, iterations_per_loop=1),
        train_batch_size=2,
    )
    with pytest.raises(est.WriterConflictError, match=r"process 7 on elsewhere .*step 4"):
        estimator.train(lambda: fakes.numbered(20), hooks=[est.hooks.LambdaHook(after_loop=lose)])
    assert fakes.saved_steps(estimator) == [2]
    assert json.loads((tmp_path / "writer.lock").read_text())["host"] == "elsewhere"


def test_a_model_dir_that_is_a_file_is_an_error_before_anything_is_compiled(
    tmp_path, nothing_compiled
):
    path = tmp_path / "model"
    path.write_text("")
    with pytest.raises(ValueError, match=f"model_dir='{path}' cannot be written") as caught:
        make(path).train(lambda: pytest.fail("input_fn was called"))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_model_dir_that_cannot_be_made_is_an_error_before_anything_is_compiled(nothing_compiled):
    with pytest.raises(ValueError, match="model_dir='/proc/model' cannot be written"):
        make("/proc/model").train(lambda: pytest.fail("input_fn was called"))


def test_a_model_dir_that_cannot_be_written_is_an_error_before_anything_is_compiled(
    nothing_compiled,
):
    # Root may write everywhere but where the kernel says no.
    with pytest.raises(ValueError, match="model_dir='/proc/self' cannot be written"):
        make("/proc/self").train(lambda: pytest.fail("input_fn was called"))
