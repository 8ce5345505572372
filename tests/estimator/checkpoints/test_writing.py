"""Checkpoints that are written behind the loop: on request, in time, and with words if not."""

from __future__ import annotations

import os
import re
import signal
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import estimator as est
from estimator.checkpoints import CheckpointWriter, as_path, preservation_policy
from estimator.hosts import HostLostError
from estimator.state import TrainState
from hooks import LoopView
from tests import fakes


def endless():
    return fakes.dataset(20).repeat()


def make(model_dir, **settings):
    settings = {"save_checkpoints_steps": 100, "iterations_per_loop": 1, **settings}
    return est.Estimator(fakes.mlp, model_dir, fakes.config(**settings), train_batch_size=2)


def after(step, act):
    """Returns a hook that acts once, behind the loop that ends at `step`."""
    return est.hooks.LambdaHook(after_loop=lambda view: act() if view.step == step else None)


def test_sigusr1_saves_behind_the_loop_that_runs(tmp_path):
    ask = after(3, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    estimator = make(tmp_path).train(endless, hooks=[ask], max_steps=6)
    assert fakes.saved_steps(estimator) == [3, 6]


@pytest.mark.parametrize("on_request", [True, False])
def test_a_file_in_model_dir_asks_for_a_checkpoint_too(tmp_path, monkeypatch, on_request):
    monkeypatch.setattr(est.hooks.EverySecs, "due", lambda self, before, step: True)
    asked = tmp_path / "save_now"
    estimator = make(tmp_path, save_checkpoints_on_request=on_request)
    estimator.train(endless, hooks=[after(3, asked.touch)], max_steps=6)
    assert fakes.saved_steps(estimator) == ([3, 6] if on_request else [6])
    assert asked.exists() == (not on_request)


class Scalars:
    """A writer that remembers what it is given."""

    def __init__(self):
        self.seen = []

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.seen.append((tag, scalar_value, global_step))

    def flush(self):
        pass


class Ticks:
    """A clock that goes on by one second at each look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def view_at(step, model_dir):
    return LoopView(
        mode="train",
        model_dir=model_dir,
        before=0,
        step=step,
        elapsed_secs=1.0,
        input_wait_secs=0.0,
        examples=8,
        input_position=None,
        read_losses=lambda: np.zeros(0, np.float32),
        read_metrics=dict,
        read_state=lambda: None,
    )


def new_writer(model_dir, **arguments):
    state = TrainState(
        step=jnp.int32(0), params={"w": jnp.ones(3)}, model_state={}, opt_state=(jnp.zeros(3),)
    )
    keep = preservation_policy(model_dir, newest=2, every_n_hours=None, best=None)
    return CheckpointWriter(model_dir, lambda: state, lambda view: None, keep, **arguments)


def test_how_long_the_loop_stood_still_is_a_scalar_of_each_save_and_a_line_at_the_end(
    tmp_path, caplog
):
    model_dir, scalars = as_path(tmp_path), Scalars()
    with (
        caplog.at_level("INFO", "estimator"),
        new_writer(model_dir, writer=scalars, clock=Ticks()) as writer,
    ):
        for step in (1, 2, 3):
            writer.save(view_at(step, model_dir))
    assert scalars.seen == [("checkpoint_stall_secs", 1.0, step) for step in (1, 2, 3)]
    assert "3 checkpoints: the loop stood still for 3.000 s in all" in caplog.text


@pytest.mark.parametrize("then", ["save", "end"])
def test_a_write_that_fails_is_told_at_the_next_save_or_the_end_by_its_path_and_cause(
    tmp_path, monkeypatch, then
):
    model_dir = as_path(tmp_path)
    rename = os.rename

    def fails(source, target, **options):
        if os.fspath(target).endswith("checkpoints/2"):
            raise OSError(28, "No space left on device")
        rename(source, target, **options)

    writer = new_writer(model_dir)
    writer.save(view_at(1, model_dir))
    writer.wait()
    monkeypatch.setattr(os, "rename", fails)
    writer.save(view_at(2, model_dir))
    words = rf"{re.escape(str(model_dir))}/checkpoints/2 could not be written: .*No space left"
    with pytest.raises(est.CheckpointError, match=words) as caught:
        writer.save(view_at(3, model_dir)) if then == "save" else writer.__exit__(None, None, None)
    assert "The newest whole one is 1." in str(caught.value)
    assert [found.step for found in est.checkpoints.list(tmp_path)] == [1]
    monkeypatch.undo()
    with new_writer(model_dir) as again:
        again.save(view_at(2, model_dir))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]


class BadRecord(Exception):
    """An error of a run."""


def held(monkeypatch, target_name, failure=None):
    """Lets the checkpoint of this name become whole only once the event that is returned is set;
    then raises `failure` if there is one."""
    go, rename = threading.Event(), os.rename

    def waits(source, target, **options):
        if os.fspath(target).endswith(target_name):
            go.wait()
            if failure is not None:
                raise failure
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", waits)
    return go


def test_an_error_of_the_run_lets_the_checkpoint_being_written_become_whole(tmp_path, monkeypatch):
    model_dir = as_path(tmp_path)
    go = held(monkeypatch, "checkpoints/1")
    writer = new_writer(model_dir)
    close = writer._manager.close
    monkeypatch.setattr(writer._manager, "close", lambda: (go.set(), close()))
    with pytest.raises(BadRecord), writer:
        writer.save(view_at(1, model_dir))
        raise BadRecord
    assert [found.step for found in est.checkpoints.list(tmp_path)] == [1]


def test_a_write_that_fails_after_an_error_becomes_its_note(tmp_path, monkeypatch):
    model_dir = as_path(tmp_path)
    go = held(monkeypatch, "checkpoints/1", OSError(28, "No space left on device"))
    with pytest.raises(BadRecord) as caught, new_writer(model_dir) as writer:
        writer.save(view_at(1, model_dir))
        go.set()
        raise BadRecord
    (note,) = caught.value.__notes__
    assert "checkpoints/1 could not be written" in note
    assert "No space left" in note


def test_ctrl_c_while_a_checkpoint_becomes_whole_after_an_error_only_ends_the_wait(
    tmp_path, monkeypatch
):
    writer = new_writer(as_path(tmp_path))

    def is_interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(writer._manager, "close", is_interrupted)
        with pytest.raises(BadRecord) as caught, writer:
            raise BadRecord
    writer._manager.close()
    assert caught.value.__notes__ == ["KeyboardInterrupt"]


def test_the_loss_of_another_process_is_not_waited_for_by_what_needs_it(tmp_path, monkeypatch):
    model_dir = as_path(tmp_path)
    go = held(monkeypatch, "checkpoints/1")
    try:
        with pytest.raises(HostLostError), new_writer(model_dir) as writer:
            writer.save(view_at(1, model_dir))
            raise HostLostError("Process 0 has lost the connection to process 1.")
        assert not est.checkpoints.list(tmp_path)
    finally:
        go.set()
