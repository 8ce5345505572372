"""An evaluator beside training: what it evaluates, for how long it waits, and why it leaves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import estimator as est
from tests.counting import counting, endless, evaluated, once, steps_of_input
from tests.fakes import saved_steps


class World:
    """What happens while the evaluator waits: one event for each time that it sleeps.

    An event is a function, or a number of seconds that go by.
    """

    def __init__(self, *events):
        self.now = 0.0
        self._events = list(events)

    def clock(self):
        return self.now

    def sleep(self, secs):
        event = self._events.pop(0)
        if callable(event):
            event()
            event = secs
        self.now += event


def trains(folder, input_fn=endless, killed=False, **settings):
    """Returns an event: another process trains; `killed` leaves it no time to say that it ends."""

    def happens():
        counting(folder, **settings).train(input_fn, max_steps=100 if killed else 1000, hooks=hooks)

    class Killed(est.hooks.Hook):
        def after_save(self, step, path):
            if killed and step >= killed:
                raise InterruptedError

    hooks = [Killed()] if killed else []

    def cut_off():
        with pytest.raises(InterruptedError):
            happens()

    return cut_off if killed else happens


def watch(folder, world, hooks=(), exporters=(), idle_timeout_secs=100.0, **spec):
    return est.evaluate_continuously(
        counting(folder),
        est.EvalSpec(once, hooks=hooks, exporters=exporters, **spec),
        idle_timeout_secs=idle_timeout_secs,
        clock=world.clock,
        sleep=world.sleep,
    )


def test_it_waits_for_checkpoints_and_leaves_when_training_has_ended(tmp_path, caplog):
    caplog.set_level("INFO", "estimator")
    world = World(5.0, trains(tmp_path, lambda: steps_of_input(34)))

    result = watch(tmp_path, world)

    assert evaluated(counting(tmp_path)) == {10: 10.0, 20: 20.0, 30: 30.0, 34: 34.0}
    assert result.metrics == {"loss": 34.0, "score": 0.0, "global_step": 34}
    assert caplog.text.count("Waiting for new checkpoint") == 1
    assert "Training has ended at step 34" in caplog.text


def test_training_that_stops_for_a_while_is_waited_for(tmp_path):
    world = World(trains(tmp_path, killed=20), 60.0, trains(tmp_path, lambda: steps_of_input(14)))

    result = watch(tmp_path, world)

    assert list(evaluated(counting(tmp_path))) == [10, 20, 30, 34]
    assert result.metrics["global_step"] == 34


def test_it_leaves_when_nothing_new_comes(tmp_path, caplog):
    world = World(trains(tmp_path, killed=20), 60.0, 60.0)

    result = watch(tmp_path, world)

    assert result.metrics["global_step"] == 20
    assert "No new checkpoint" in caplog.text


def test_a_throttle_takes_the_newest_at_each_time_and_names_the_others(tmp_path, caplog):
    caplog.set_level("INFO", "estimator")
    world = World(
        trains(tmp_path, killed=20),
        trains(tmp_path, killed=40),
        10.0,
        20.0,
        trains(tmp_path, lambda: steps_of_input(14)),
    )

    watch(tmp_path, world, throttle_secs=30.0)

    assert list(evaluated(counting(tmp_path))) == [20, 40, 54]
    for step in (10, 30, 50):
        assert f"Checkpoint {step} is not evaluated" in caplog.text


def test_a_throttle_that_is_longer_than_the_timeout_holds_back_no_evaluation(tmp_path):
    world = World(trains(tmp_path, killed=20), trains(tmp_path, killed=30), *[150.0] * 4)

    watch(tmp_path, world, throttle_secs=300.0)

    assert list(evaluated(counting(tmp_path))) == [20, 30]


def test_a_restart_evaluates_only_what_is_new(tmp_path):
    watch(tmp_path, World(trains(tmp_path, killed=20), 100.0))
    log = []
    hook = est.hooks.LambdaHook(begin=lambda context: log.append(1))

    result = watch(tmp_path, World(trains(tmp_path, lambda: steps_of_input(14))), hooks=[hook])

    assert list(evaluated(counting(tmp_path))) == [10, 20, 30, 34]
    assert len(log) == 2
    assert result.metrics["global_step"] == 34


def test_started_when_all_is_done_it_still_tells_the_metrics(tmp_path):
    trains(tmp_path, lambda: steps_of_input(14))()
    watch(tmp_path, World())

    assert watch(tmp_path, World()).metrics["global_step"] == 14


def test_a_checkpoint_that_makes_room_in_the_meantime_is_left_out(tmp_path, caplog):
    trains(tmp_path, lambda: steps_of_input(34))()
    folder = Path(counting(tmp_path).model_dir) / "checkpoints"

    def gone_before_it_is_read():
        if (folder / "10").exists():
            shutil.rmtree(folder / "10")
        return once()

    result = est.evaluate_continuously(counting(tmp_path), est.EvalSpec(gone_before_it_is_read))

    assert list(evaluated(counting(tmp_path))) == [20, 30, 34]
    assert result.metrics["global_step"] == 34
    assert "has made room" in caplog.text


def test_an_error_of_the_users_own_ends_it(tmp_path):
    trains(tmp_path, lambda: steps_of_input(34))()
    error = FileNotFoundError("no such data")

    def fails():
        raise error

    with pytest.raises(FileNotFoundError) as caught:
        est.evaluate_continuously(counting(tmp_path), est.EvalSpec(fails))

    assert caught.value is error


def test_exports_are_made_behind_its_evaluations(tmp_path):
    serving_input = est.export.serving_input(once())
    exporters = [est.export.BestExporter(serving_input), est.export.FinalExporter(serving_input)]

    world = World(trains(tmp_path, lambda: steps_of_input(14)))
    exports = watch(tmp_path, world, exporters=exporters).exports

    for name, step in (("best", 10), ("final", 14)):
        served = est.export.load(exports[name])["serving_default"](once())
        assert served["weight"].tolist() == [step] * 8


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"idle_timeout_secs": 0}, ValueError, "idle_timeout_secs must be a positive number"),
        ({"poll_secs": -1.0}, ValueError, "poll_secs must be a positive number"),
        ({"eval_spec": once}, TypeError, "eval_spec must be an EvalSpec, got function"),
    ],
)
def test_bad_arguments_are_told_at_once(tmp_path, arguments, error, message):
    arguments = {"eval_spec": est.EvalSpec(once), **arguments}
    with pytest.raises(error, match=message):
        est.evaluate_continuously(counting(tmp_path), **arguments)


SCRIPT = """
import sys
from tests.counting import counting, steps_of_input
counting(sys.argv[1], keep_checkpoint_max=2).train(lambda: steps_of_input(344), max_steps=1000)
"""


@pytest.mark.slow
def test_beside_a_training_process_the_last_checkpoint_is_evaluated_and_both_end(tmp_path):
    trainer = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=Path(__file__).parents[3]
    )
    try:
        result = est.evaluate_continuously(
            counting(tmp_path), est.EvalSpec(once), idle_timeout_secs=120.0, poll_secs=0.05
        )
    finally:
        trainer.kill()
    assert trainer.wait(60) in (0, -9)

    assert result.metrics["global_step"] == 344
    assert saved_steps(counting(tmp_path))[-1] == 344
