"""Many runs in one process: nothing is compiled twice, nothing piles up."""

from __future__ import annotations

import gc
import threading
from typing import Any

import jax
import numpy as np
import optax
import pytest

import estimator as est
from tests import fakes
from tests.fakes import config, dataset, final_state, mlp, numbered


def wait_for_orbax() -> None:
    """Waits for the threads that orbax lets end by themselves."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(5)


def test_rounds_of_train_and_evaluate_leave_nothing_behind(tmp_path, compilations):
    estimator = est.Estimator(
        mlp,
        tmp_path,
        config(devices=2, iterations_per_loop=3, save_summary_steps=10, log_step_count_steps=10),
        {"optimizer": optax.adam(0.01), "host_call": lambda id, loss: None},
        train_batch_size=4,
        eval_batch_size=4,
    )
    rounds = []
    for _ in range(20):
        estimator.train(lambda: dataset(20).shuffle(seed=0).repeat(), steps=5)
        estimator.evaluate(lambda: numbered(10), steps=2)
        gc.collect()
        wait_for_orbax()
        rounds.append((threading.active_count(), len(jax.live_arrays()), compilations.count))
    assert rounds[2:] == [rounds[2]] * 18
    assert fakes.latest_step(estimator) == 100


def test_one_program_serves_loops_of_every_length(tmp_path, compilations):
    estimator = est.Estimator(mlp, tmp_path, config(iterations_per_loop=10), train_batch_size=2)

    def input_fn():
        return dataset(20).repeat()

    estimator.train(input_fn, steps=25)
    before, log = compilations.count, fakes.LoopLog()
    for steps in (25, 1, 7, 13):
        estimator.train(input_fn, steps=steps, hooks=[log])
    estimator.train(input_fn, hooks=[log, est.hooks.StopAtStepHook(num_steps=3)], max_steps=1000)
    assert log.lengths == [10, 10, 5, 1, 7, 10, 3, 3]
    assert compilations.count == before


@pytest.mark.parametrize("scalar_loss", [False, True], ids=["loss [batch]", "scalar loss"])
def test_partial_batches_compile_no_program_for_each_epoch(tmp_path, compilations, scalar_loss):
    estimator = est.Estimator(
        mlp,
        tmp_path,
        config(iterations_per_loop=7),
        {"scalar_loss": scalar_loss},
        train_batch_size=4,
    )

    def input_fn():
        return dataset(18).batch(4).repeat()

    estimator.train(input_fn, steps=7)
    before = compilations.count
    estimator.train(input_fn, steps=70)
    assert compilations.count - before <= 1


@pytest.mark.parametrize("shape", ["unrolled", "per_step", "auto"])
def test_every_shape_of_the_loop_computes_the_same(tmp_path, shape):
    def run(name: str) -> Any:
        ids, log = fakes.IdLog(), fakes.LoopLog()
        estimator = est.Estimator(
            mlp,
            tmp_path / name,
            config(iterations_per_loop=25, loop_shape=name, host_call_every_n_steps=3),
            {"dropout": 0.5, "host_call": ids, "optimizer": optax.adam(0.01)},
            train_batch_size=4,
        )
        state = final_state(estimator, lambda: dataset(30).batch(4).repeat(), hooks=[log], steps=60)
        return state, log.losses, ids.steps, ids.ids

    expected, actual = run("device_loop"), run(shape)
    if shape == "unrolled":  # XLA fuses over the borders of its steps, which rounds otherwise
        for name, values in expected[0].items():
            np.testing.assert_allclose(actual[0][name], values, rtol=1e-5, atol=1e-7, err_msg=name)
        np.testing.assert_allclose(actual[1], expected[1], rtol=1e-5)
    else:
        fakes.assert_equal(actual[0], expected[0])
        assert actual[1] == expected[1]
    assert actual[2:] == expected[2:]
