"""A run that hangs ends, and says what it hangs in."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import traceback
from pathlib import Path

import flax.linen as nn
import numpy as np
import optax
import pytest

import estimator as est
from estimator.errors import Rendezvous
from estimator.watchdog import Doing, Watchdog, WatchdogError
from input_pipeline import ClosableQueue

X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
Y = X.sum(-1)
WAIT_SECS = 60  # only a test that fails waits for so long


class Clock:
    """Shows the time that it is set to."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watchdog(clock):
    """One that allows 60 s, and whose own thread is too slow to matter."""
    with Rendezvous() as rendezvous:
        rendezvous.owns(ClosableQueue(2, name="infeed"))
        yield Watchdog(60, rendezvous, lambda: False, clock)


def test_nothing_is_raised_before_something_has_begun(watchdog, clock):
    clock.now = 1e9
    watchdog.check()


def test_it_raises_as_soon_as_the_time_is_over(watchdog, clock):
    watchdog.begins(Doing.DEVICES)
    clock.now = 59.9
    watchdog.check()

    clock.now = 60.0
    with pytest.raises(WatchdogError, match=r"devices have not finished .* for 60 s"):
        watchdog.check()


def test_progress_starts_the_time_anew(watchdog, clock):
    watchdog.begins(Doing.DEVICES)
    clock.now = 50.0
    watchdog.begins(Doing.HOOKS)
    clock.now = 109.9
    watchdog.check()

    clock.now = 110.0
    with pytest.raises(WatchdogError, match="A hook"):
        watchdog.check()


def test_a_rest_may_last_for_ever(watchdog, clock):
    watchdog.begins(Doing.HOOKS)
    watchdog.rests()
    clock.now = 1e9
    watchdog.check()


def test_what_is_excused_is_progress(clock):
    excused = True
    with Rendezvous() as rendezvous:
        watchdog = Watchdog(60, rendezvous, lambda: excused, clock)
        watchdog.begins(Doing.DEVICES)
        clock.now = 1000.0
        watchdog.check()
        excused = False
        clock.now = 1059.0
        watchdog.check()
        clock.now = 1060.0
        with pytest.raises(WatchdogError):
            watchdog.check()


def test_the_log_has_all_stacks_and_what_the_queues_hold(watchdog, clock, caplog):
    watchdog.begins(Doing.HOOKS)
    clock.now = 60.0
    with pytest.raises(WatchdogError, match=r"test_watchdog.py:\d+ \(test_the_log_has"):
        watchdog.check()

    assert "infeed holds 0" in caplog.text
    assert "Thread 'MainThread':" in caplog.text and "Thread 'watchdog':" in caplog.text


def test_a_run_that_does_not_come_back_ends_the_process():
    ended, codes = threading.Event(), []

    def exit_process(code):
        codes.append(code)
        ended.set()

    with pytest.raises(WatchdogError), Rendezvous() as rendezvous:
        watchdog = Watchdog(0.01, rendezvous, lambda: False, exit_process=exit_process)
        watchdog.begins(Doing.DEVICES)
        assert ended.wait(WAIT_SECS)

    assert codes == [124]


def model_fn(features, labels, mode, params):
    outputs = nn.Dense(1)(features)[:, 0]
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions=outputs)
    loss = (outputs - labels) ** 2
    return est.EstimatorSpec(
        mode,
        loss=loss,
        optimizer=optax.sgd(0.1),
        host_call=params.get("host_call") and (params["host_call"], {"loss": loss.mean()}),
        eval_metrics=params.get("metric_fn") and (params["metric_fn"], {"loss": loss}),
    )


@pytest.fixture
def clock_of_runs(clock, monkeypatch):
    """What the watchdogs of runs read, which look every few milliseconds."""
    monkeypatch.setattr("estimator.job.Watchdog", functools.partial(Watchdog, clock=clock))
    monkeypatch.setattr("estimator.watchdog._LOOKS", 1e6)
    return clock


@pytest.fixture
def stuck(clock_of_runs, monkeypatch):
    """Does not come back before the test is over, and is then left behind without ado. Time passes
    only while the run is at a place whose file has the name that is given."""
    for module in ("estimator.errors", "input_pipeline.ahead"):
        monkeypatch.setattr(f"{module}._JOIN_SECS", 0.01)
    over = threading.Event()

    def wait(*places):
        while not over.wait(0.001):
            frame = sys._current_frames()[threading.main_thread().ident]
            files = {
                Path(entry.f_code.co_filename).stem for entry, _ in traceback.walk_stack(frame)
            }
            if not files.isdisjoint(places):
                clock_of_runs.now += 60.0

    yield wait
    over.set()


def new(model_dir, **params):
    sizes = dict.fromkeys(["train_batch_size", "eval_batch_size", "predict_batch_size"], 8)
    config = est.RunConfig(iterations_per_loop=1, watchdog_secs=3600, save_checkpoints_steps=1)
    return est.Estimator(model_fn, model_dir, config, params=params, **sizes)


@pytest.mark.parametrize("batches_before", [0, 3])
@pytest.mark.parametrize("method", ["train", "evaluate", "predict"])
def test_an_input_that_gives_no_batch_is_named(tmp_path, stuck, method, batches_before):
    def batches():
        for _ in range(batches_before):
            yield (X[:8], Y[:8])
        stuck("opening", "infeed")

    model = new(tmp_path)
    with pytest.raises(est.WatchdogError, match=r"input_fn .* for 3600 s; its thread is at") as e:
        list(getattr(model, method)(batches) or ())

    assert "test_watchdog.py" in str(e.value)


def test_a_function_of_map_that_is_stuck_on_a_thread_of_its_own_is_named(tmp_path, stuck):
    def decode(example):
        stuck("opening", "infeed")
        return example

    def input_fn():
        return est.input_pipeline.Dataset.from_arrays((X, Y)).map(decode).prefetch(4, threads=2)

    with pytest.raises(est.WatchdogError, match=r"input_fn .*test_watchdog.py"):
        new(tmp_path).train(input_fn)


def test_a_host_call_that_is_stuck_is_named_and_what_was_trained_is_saved(tmp_path, stuck):
    model = new(tmp_path, host_call=lambda loss: stuck("outfeed"))
    with pytest.raises(est.WatchdogError, match=r"host_call.*test_watchdog.py"):
        model.train(lambda: (X, Y))

    assert model.latest_checkpoint() is not None


def test_a_metric_fn_that_is_stuck_is_named(tmp_path, stuck):
    model = new(tmp_path, metric_fn=lambda loss: stuck("outfeed"))
    with pytest.raises(est.WatchdogError, match=r"host_call.*test_watchdog.py"):
        model.evaluate(lambda: (X, Y))


def test_a_hook_that_was_stuck_is_named_when_it_is_back(tmp_path, clock_of_runs):
    logged = threading.Event()

    class Log(logging.Handler):
        def emit(self, record):
            logged.set()

    def slow(view):
        clock_of_runs.now += 3600.0
        assert logged.wait(WAIT_SECS)

    logger, handler = logging.getLogger("estimator.watchdog"), Log()
    logger.addHandler(handler)
    try:
        with pytest.raises(est.WatchdogError, match=r"A hook.*test_watchdog.py:\d+ \(slow\)"):
            new(tmp_path).train(
                lambda: (X, Y), hooks=[est.hooks.LambdaHook(after_loop=slow)], steps=3
            )
    finally:
        logger.removeHandler(handler)


def test_a_caller_of_predict_may_take_its_time(tmp_path, clock_of_runs, monkeypatch):
    made = []

    def make(*args):
        made.append(Watchdog(*args, clock=clock_of_runs))
        return made[-1]

    monkeypatch.setattr("estimator.job.Watchdog", make)
    outputs = []
    for output in new(tmp_path).predict(lambda: X[:16]):
        outputs.append(output)
        clock_of_runs.now += 3600.0
        made[-1].check()

    assert len(outputs) == 16
