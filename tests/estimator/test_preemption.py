"""SIGTERM and Ctrl-C end a run where nothing is lost, and it goes on as if it had not ended."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import estimator as est

X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
Y = X.sum(-1)
HANDLED = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers_come_back():
    before = [signal.getsignal(number) for number in HANDLED]
    yield
    assert [signal.getsignal(number) for number in HANDLED] == before


class Send(est.hooks.Hook):
    """Sends this process signals behind the loop that ends at `step`."""

    def __init__(self, step, *numbers):
        self.step, self.numbers = step, numbers

    def after_loop(self, view):
        if view.step == self.step:
            for number in self.numbers:
                os.kill(os.getpid(), number)


def model_fn(features, labels, mode):
    predictions = nn.Dropout(0.1, deterministic=mode != est.ModeKeys.TRAIN)(
        nn.Dense(1)(features)[:, 0]
    )
    return est.EstimatorSpec(mode, loss=(predictions - labels) ** 2, optimizer=optax.adam(0.1))


def input_fn():
    return est.input_pipeline.Dataset.from_arrays((X, Y)).shuffle(seed=1).repeat()


def new(model_dir, model_fn=model_fn):
    config = est.RunConfig(iterations_per_loop=10)
    return est.Estimator(model_fn, model_dir, config, train_batch_size=8, eval_batch_size=8)


def values(model):
    return [model.get_variable_value(name).tobytes() for name in model.get_variable_names()]


def test_sigterm_saves_behind_the_loop_and_a_rerun_gives_the_same_bits(tmp_path):
    with pytest.raises(est.PreemptedError, match="step 20") as caught:
        new(tmp_path / "cut").train(input_fn, hooks=[Send(20, signal.SIGTERM)], max_steps=50)
    resumed = new(tmp_path / "cut").train(input_fn, max_steps=50)

    assert (caught.value.step, caught.value.code) == (20, 143)
    assert caught.value.path.name == "20"
    assert values(resumed) == values(new(tmp_path / "whole").train(input_fn, max_steps=50))


@pytest.mark.parametrize("loop_shape", ["device_loop", "per_step"])
def test_sigterm_in_the_middle_of_a_loop_saves_at_its_end(tmp_path, loop_shape):
    def send_at_13(first):
        if first == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    def sending(features, labels, mode):
        if mode == est.ModeKeys.TRAIN:
            jax.debug.callback(send_at_13, features[0, 0])
        return model_fn(features, labels, mode)

    batch_numbers = np.repeat(np.arange(60, dtype=np.float32), 8)
    data = np.stack([batch_numbers] * 3, 1), batch_numbers
    config = est.RunConfig(iterations_per_loop=10, loop_shape=loop_shape)
    model = est.Estimator(sending, tmp_path, config, train_batch_size=8)
    with pytest.raises(est.PreemptedError) as caught:
        model.train(lambda: data, max_steps=50)

    assert (caught.value.step, caught.value.path.name) == (20, "20")


def test_sigterm_while_it_compiles_saves_the_step_that_it_stands_at(tmp_path):
    def traced(features, labels, mode):
        os.kill(os.getpid(), signal.SIGTERM)
        return model_fn(features, labels, mode)

    with pytest.raises(est.PreemptedError) as caught:
        new(tmp_path, traced).train(input_fn, max_steps=50)

    assert caught.value.step == 0
    assert new(tmp_path).train(input_fn, steps=5).latest_checkpoint().endswith("/5")


def test_sigterm_in_the_trace_of_the_loop_takes_no_step(tmp_path):
    # Which is later than that of the variables, when the hooks have begun.
    class SendOnce(est.hooks.Hook):
        begun = False

        def begin(self, context):
            self.begun = True

    hook = SendOnce()

    def traced(features, labels, mode):
        if hook.begun:
            os.kill(os.getpid(), signal.SIGTERM)
        return model_fn(features, labels, mode)

    with pytest.raises(est.PreemptedError) as caught:
        new(tmp_path, traced).train(input_fn, hooks=[hook], max_steps=50)

    assert hook.begun
    assert caught.value.step == 0
    assert caught.value.path.name == "0"


def test_sigterm_in_an_evaluation_names_the_checkpoint_and_writes_no_results(tmp_path):
    model = new(tmp_path).train(input_fn, steps=30)

    with pytest.raises(est.PreemptedError) as caught:
        model.evaluate(input_fn, steps=50, hooks=[Send(20, signal.SIGTERM)])

    assert caught.value.step == 30
    assert str(caught.value.path) == model.latest_checkpoint()
    assert not os.path.exists(model.eval_dir())


def test_sigterm_behind_the_last_loop_is_heard_once_its_step_is_saved(tmp_path):
    send = est.hooks.LambdaHook(end=lambda view: os.kill(os.getpid(), signal.SIGTERM))
    model = new(tmp_path)
    with pytest.raises(est.PreemptedError) as caught:
        model.train(input_fn, hooks=[send], max_steps=20)

    assert (caught.value.step, caught.value.path.name) == (20, "20")
    assert model.train(input_fn, max_steps=20).latest_checkpoint().endswith("/20")


def test_sigterm_while_the_last_metrics_are_computed_is_heard(tmp_path):
    calls = []

    def metric_fn(loss):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"worst": loss.max()}

    def measured(features, labels, mode):
        spec = model_fn(features, labels, mode)
        return dataclasses.replace(spec, eval_metrics=(metric_fn, {"loss": spec.loss}))

    model = new(tmp_path).train(input_fn, steps=10)
    with pytest.raises(est.PreemptedError) as caught:
        new(tmp_path, measured).evaluate(lambda: (X[:24], Y[:24]))

    assert len(calls) == 3
    assert str(caught.value.path) == model.latest_checkpoint()
    assert not os.path.exists(model.eval_dir())


def test_the_first_ctrl_c_saves_and_stops(tmp_path):
    model = new(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        model.train(input_fn, hooks=[Send(20, signal.SIGINT)], max_steps=50)

    assert model.latest_checkpoint().endswith("/20")


def test_the_second_ctrl_c_stops_at_once(tmp_path):
    model = new(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        model.train(input_fn, hooks=[Send(20, signal.SIGINT, signal.SIGINT)], max_steps=50)

    assert model.latest_checkpoint() is None


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, est.PreemptedError), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_does_not_wait_for_input_that_does_not_come(tmp_path, number, error):
    trained, over = threading.Event(), threading.Event()

    def batches():
        yield X[:8], Y[:8]
        yield X[8:16], Y[8:16]
        trained.wait(60)
        os.kill(os.getpid(), number)
        over.wait(60)

    hook = est.hooks.LambdaHook(after_loop=lambda view: trained.set() if view.step == 2 else None)
    config = est.RunConfig(iterations_per_loop=1)
    model = est.Estimator(model_fn, tmp_path, config, train_batch_size=8)
    try:
        with pytest.raises(error):
            model.train(batches, hooks=[hook])
    finally:
        over.set()

    assert model.latest_checkpoint().endswith("/2")


def test_a_watcher_does_what_sigterm_does_even_while_input_does_not_come(tmp_path):
    trained, over = threading.Event(), threading.Event()

    def batches():
        yield X[:8], Y[:8]
        yield X[8:16], Y[8:16]
        over.wait(60)

    hook = est.hooks.LambdaHook(after_loop=lambda view: trained.set() if view.step == 2 else None)
    watcher = est.hooks.CallableWatcher(lambda: "spot price" if trained.is_set() else None, 1e-3)
    config = est.RunConfig(iterations_per_loop=1, preemption_watchers=[watcher])
    model = est.Estimator(model_fn, tmp_path, config, train_batch_size=8)
    try:
        with pytest.raises(est.PreemptedError, match="spot price") as caught:
            model.train(batches, hooks=[hook])
    finally:
        over.set()

    assert caught.value.step == 2
    assert model.latest_checkpoint().endswith("/2")


def test_a_watcher_ends_an_evaluation(tmp_path):
    watcher = est.hooks.CallableWatcher(lambda: "spot price")
    config = est.RunConfig(iterations_per_loop=1, preemption_watchers=[watcher])
    model = est.Estimator(model_fn, tmp_path, config, eval_batch_size=8)

    with pytest.raises(est.PreemptedError, match="spot price"):
        model.evaluate(input_fn)  # which has no end


def test_a_handler_of_the_users_own_stays_in_force(tmp_path):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        model = new(tmp_path).train(input_fn, hooks=[Send(20, signal.SIGTERM)], max_steps=30)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    assert heard == [signal.SIGTERM]
    assert model.latest_checkpoint().endswith("/30")


def test_on_another_thread_training_works_and_says_that_signals_are_not_watched(tmp_path, caplog):
    caplog.set_level("INFO", "hooks")
    thread = threading.Thread(target=lambda: new(tmp_path).train(input_fn, steps=10))
    thread.start()
    thread.join(120)

    assert new(tmp_path).latest_checkpoint().endswith("/10")
    assert "not the main thread" in caplog.text


def test_exit_on_preemption_says_where_it_stopped_and_exits_with_143(tmp_path, caplog):
    model = new(tmp_path)
    with pytest.raises(SystemExit) as caught, est.exit_on_preemption():
        model.train(input_fn, hooks=[Send(20, signal.SIGTERM)], max_steps=50)

    assert type(caught.value) is SystemExit
    assert caught.value.code == 143
    assert f"SIGTERM was received; training goes on from step 20, {tmp_path}" in caplog.text


def test_exit_on_preemption_lets_all_else_pass(tmp_path):
    with est.exit_on_preemption():
        new(tmp_path).train(input_fn, steps=1)
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), est.exit_on_preemption():
            raise error


SCRIPT = """
import os, signal, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
from test_preemption import Send, input_fn, new
new(sys.argv[2]).train(input_fn, hooks=[Send(20, signal.SIGTERM)], max_steps=50)
"""


@pytest.mark.slow
def test_a_script_that_is_preempted_exits_with_143_and_without_a_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, __file__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 143
    assert "Traceback" not in done.stderr
    assert new(tmp_path).latest_checkpoint().endswith("/20")
