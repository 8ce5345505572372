"""How many steps training takes, in which loops, and that loops do not change its numbers."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import estimator as est
from estimator.input_partition import InputPartition
from estimator.training import TrainingLoop
from tests import fakes
from tests.fakes import LoopLog, config, dataset, final_state, mlp, numbered

WAIT_SECS = 10  # only a test that fails waits for so long


def make(model_dir: Path, *, batch_size: int = 2, params: Any = None, **settings: Any):
    return est.Estimator(
        mlp,
        model_dir=model_dir,
        config=config(**settings),
        params=params,
        train_batch_size=batch_size,
    )


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = ("estimator", "hooks", "input_pipeline")
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.split(".")[0] in ours
    ]


@pytest.mark.parametrize(
    "input_fn",
    [lambda: numbered(10), lambda: fakes.batches(10, 2), lambda: list(fakes.batches(10, 2))],
    ids=["arrays", "generator", "list of batches"],
)
def test_training_ends_with_the_input_and_says_so_once(tmp_path, caplog, input_fn):
    estimator, log = make(tmp_path, iterations_per_loop=4), LoopLog()
    with caplog.at_level(logging.WARNING):
        returned = estimator.train(input_fn, hooks=[log], max_steps=100)
    assert returned is estimator
    assert log.lengths == [4, 1]
    assert fakes.saved_steps(estimator) == [5]
    (warning,) = warnings_of(caplog)
    assert "input ended at step 5 of 100" in warning


def test_training_without_a_limit_lasts_as_long_as_the_input_without_a_warning(tmp_path, caplog):
    estimator = make(tmp_path, iterations_per_loop=4)
    with caplog.at_level(logging.WARNING):
        estimator.train(lambda: numbered(9))
    assert fakes.latest_step(estimator) == 5
    assert warnings_of(caplog) == []


def test_max_steps_is_absolute_and_steps_counts_from_where_training_stands(tmp_path, caplog):
    estimator, calls = make(tmp_path), []

    def input_fn():
        calls.append(None)
        return dataset(20).repeat()

    estimator.train(input_fn, max_steps=100)
    path = Path(estimator.latest_checkpoint() or "")
    written = (path / "commit_success.txt").stat().st_mtime_ns
    with caplog.at_level(logging.INFO, logger="estimator"):
        assert estimator.train(input_fn, max_steps=100) is estimator
    assert len(calls) == 1
    assert "100 >= 100" in caplog.text
    assert (path / "commit_success.txt").stat().st_mtime_ns == written
    estimator.train(input_fn, steps=100)
    assert fakes.latest_step(estimator) == 200


def test_a_limit_that_is_passed_already_trains_nothing(tmp_path, caplog):
    estimator = make(tmp_path)
    estimator.train(lambda: dataset(20).repeat(), max_steps=7)
    with caplog.at_level(logging.INFO, logger="estimator"):
        estimator.train(lambda: pytest.fail("input_fn was called"), max_steps=5)
    assert "7 >= 5" in caplog.text
    assert fakes.latest_step(estimator) == 7


def test_the_last_loop_is_cut_at_the_limit_and_grouping_changes_no_bit(tmp_path):
    params = {"dropout": 0.5}

    def repeated():
        return dataset(10).repeat()

    kept = {}

    def keep(view):
        if view.step in (5, 30, 250):
            kept[view.step] = fakes.named(view.state())

    one = make(tmp_path / "1", params=params, iterations_per_loop=1)
    one.train(repeated, hooks=[est.hooks.LambdaHook(after_loop=keep)], max_steps=250)
    cases = [
        (100, repeated, 250, [100, 100, 50], 250),
        (1000, repeated, 30, [30], 30),
        (20, lambda: numbered(10), None, [5], 5),
    ]
    for iterations, input_fn, max_steps, lengths, last in cases:
        log = LoopLog()
        estimator = make(tmp_path / str(iterations), params=params, iterations_per_loop=iterations)
        state = final_state(estimator, input_fn, hooks=[log], max_steps=max_steps)
        assert log.lengths == lengths
        assert len(log.losses) == last
        assert int(state["step"]) == last
        fakes.assert_equal(state, kept[last])


def test_a_run_shorter_than_one_loop_reports_its_loss(tmp_path, caplog):
    estimator = make(tmp_path, iterations_per_loop=20, log_step_count_steps=100)
    log = LoopLog()
    with caplog.at_level(logging.INFO):
        estimator.train(lambda: numbered(10), hooks=[log])
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("step 5:")]
    assert f"loss = {log.losses[-1]:.6g}" in line


def test_loops_are_cut_where_a_checkpoint_is_due(tmp_path):
    estimator, log = make(tmp_path, iterations_per_loop=100, save_checkpoints_steps=250), LoopLog()
    estimator.train(lambda: dataset(10).repeat(), hooks=[log], max_steps=1000)
    assert fakes.saved_steps(estimator) == [250, 500, 750, 1000]
    assert log.lengths == [100, 100, 50] * 4


@pytest.mark.parametrize("devices", [1, 4])
def test_a_step_is_one_global_batch_however_many_devices_share_it(tmp_path, devices):
    ids, log = fakes.IdLog(), LoopLog()
    estimator = make(tmp_path, batch_size=8, params={"host_call": ids}, devices=devices)
    estimator.train(lambda: numbered(160), hooks=[log], max_steps=20)
    assert fakes.latest_step(estimator) == 20
    assert log.examples == 160
    assert ids.all_ids == list(range(160))


def test_a_model_fn_that_changes_the_step_is_rejected(tmp_path, nothing_compiled):
    def counting(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, params, context)
        context.step = context.step + 1
        return spec

    estimator = est.Estimator(counting, tmp_path, config(), train_batch_size=8)
    with pytest.raises(AttributeError, match="step"):
        estimator.train(lambda: numbered(160), max_steps=20)
    assert estimator.latest_checkpoint() is None


@pytest.mark.parametrize(
    ("rows", "scalar_loss"),
    [(240, False), (250, False), (250, True)],
    ids=["full batches", "a partial batch in each epoch", "partial batches and a scalar loss"],
)
def test_parameters_do_not_depend_on_iterations_per_loop(tmp_path, rows, scalar_loss):
    params = {"dropout": 0.3, "scalar_loss": scalar_loss}

    def run(name: str, **settings: Any) -> dict[str, np.ndarray]:
        estimator = make(tmp_path / name, batch_size=24, params=params, **settings)
        return final_state(estimator, lambda: dataset(rows).batch(24).repeat(), max_steps=100)

    expected = run("1", iterations_per_loop=1)
    for iterations in (7, 100):
        fakes.assert_equal(run(str(iterations), iterations_per_loop=iterations), expected)


@pytest.mark.parametrize("optimizer", [optax.sgd(0.05), optax.adam(1e-2)], ids=["sgd", "adam"])
def test_a_hundred_steps_agree_with_a_plain_optax_loop(tmp_path, optimizer):
    estimator = make(tmp_path, batch_size=8, params={"optimizer": optimizer})
    state = final_state(estimator, lambda: numbered(800), max_steps=100)
    expected = fakes.mlp_by_hand(fakes.batches(800, 8), optimizer)
    fakes.assert_close(fakes.parameters(state), expected, 1e-6)


def test_losses_are_those_before_each_update(tmp_path):
    estimator, log = make(tmp_path, batch_size=4, iterations_per_loop=3), LoopLog()
    estimator.train(lambda: numbered(20), hooks=[log])
    for step, loss in enumerate(log.losses):
        params = fakes.mlp_by_hand(list(fakes.batches(20, 4))[:step], optax.sgd(0.05))
        features, labels = list(fakes.batches(20, 4))[step]
        hidden = np.maximum(features["x"] @ params["Dense_0/kernel"] + params["Dense_0/bias"], 0)
        outputs = (hidden @ params["Dense_1/kernel"] + params["Dense_1/bias"])[:, 0]
        assert loss == pytest.approx(np.mean((outputs - labels) ** 2), rel=1e-5)


def test_a_small_infeed_buffer_splits_loops_into_dispatches_and_changes_nothing(tmp_path):
    # A batch of 4 examples has 4 * (4 + 16 + 4) bytes.
    def run(name: str, **settings: Any) -> Any:
        ids, log = fakes.IdLog(), LoopLog()
        estimator = make(
            tmp_path / name,
            batch_size=4,
            params={"dropout": 0.5, "host_call": ids},
            iterations_per_loop=10,
            host_call_every_n_steps=3,
            **settings,
        )
        state = final_state(estimator, lambda: dataset(30).repeat(), hooks=[log], max_steps=25)
        return state, log.lengths, log.losses, log.examples, ids.steps, ids.ids

    expected = run("whole")
    assert expected[1] == [10, 10, 5]
    for batches in (1, 3, 4):
        split = run(str(batches), infeed_buffer_bytes=96 * batches)
        fakes.assert_equal(split[0], expected[0])
        assert split[1:] == expected[1:]


def test_without_host_call_only_the_loss_of_each_step_leaves_a_loop(tmp_path, monkeypatch):
    left = []

    def dispatch(self: TrainingLoop, *arguments: Any) -> Any:
        outputs = real_dispatch(self, *arguments)
        left.extend((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(outputs))
        return outputs

    real_dispatch = TrainingLoop._dispatch
    monkeypatch.setattr(TrainingLoop, "_dispatch", dispatch)
    estimator = make(tmp_path, batch_size=4, iterations_per_loop=5)
    estimator.train(lambda: dataset(40), max_steps=10)
    assert left == [((5,), np.float32)] * 2


def test_a_loop_of_many_transfers_keeps_few_of_them(tmp_path, monkeypatch):
    sent: list[weakref.ref[Any]] = []

    def put(self: InputPartition, batches: Any) -> Any:
        placed = real_put(self, batches)
        sent.append(weakref.ref(jax.tree.leaves(placed)[0]))
        return placed

    real_put = InputPartition.put
    monkeypatch.setattr(InputPartition, "put", put)
    alive = []
    hook = est.hooks.LambdaHook(
        after_loop=lambda view: alive.append(sum(transfer() is not None for transfer in sent))
    )
    estimator = make(
        tmp_path, batch_size=4, iterations_per_loop=60, infeed_buffer_bytes=2 * 4 * (4 + 16 + 4)
    )
    estimator.train(lambda: dataset(240), hooks=[hook])
    assert len(sent) == 30
    assert len(alive) == 1
    assert alive[0] <= 6  # two wait, one is in use, and one or two are under way at both ends


def test_the_next_transfer_arrives_while_the_devices_compute(tmp_path, monkeypatch):
    transfers = 5
    computing = [threading.Event() for _ in range(transfers)]
    arrived = [threading.Event() for _ in range(transfers + 1)]
    arrived[-1].set()  # nothing comes after the last one
    in_time = []
    count = itertools.count()

    def put(self: InputPartition, batches: Any) -> Any:
        number = next(count)
        if number:  # is sent only once the devices are at work on the one before
            in_time.append(computing[number - 1].wait(WAIT_SECS))
        placed = jax.block_until_ready(real_put(self, batches))
        arrived[number].set()
        return placed

    def compute(number: Any) -> np.float32:
        computing[int(number)].set()
        in_time.append(arrived[int(number) + 1].wait(WAIT_SECS))  # and they end once it is there
        return np.float32(0)

    def model_fn(features: Any, labels: Any, mode: Any) -> est.EstimatorSpec:
        outputs = nn.Dense(1)(features["x"])[:, 0]
        waited = jax.pure_callback(
            compute, jax.ShapeDtypeStruct((), np.float32), features["number"][0]
        )
        loss = outputs**2 + waited
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.1))

    real_put = InputPartition.put
    monkeypatch.setattr(InputPartition, "put", put)
    numbers = np.repeat(np.arange(transfers, dtype=np.int32), 8)  # two batches in each
    features = {"number": numbers, "x": np.ones((len(numbers), 4), np.float32)}
    config = fakes.config(iterations_per_loop=2)
    estimator = est.Estimator(model_fn, tmp_path, config=config, train_batch_size=4)
    estimator.train(
        lambda: est.input_pipeline.Dataset.from_arrays(
            (features, np.zeros(len(numbers), np.float32))
        )
    )
    assert all(in_time)
    assert len(in_time) >= 2 * transfers - 1


def test_a_hook_stops_training_at_its_exact_step(tmp_path):
    estimator, log = make(tmp_path, iterations_per_loop=10), LoopLog()
    stop = est.hooks.StopAtStepHook(last_step=13)
    estimator.train(lambda: dataset(10).repeat(), hooks=[log, stop])
    assert log.lengths == [10, 3]
    assert fakes.latest_step(estimator) == 13
