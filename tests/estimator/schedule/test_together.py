"""Training and evaluation by turns in one process: what is evaluated, when, what comes of it."""

from __future__ import annotations

import os
import signal

import pytest

import estimator as est
from tests.counting import counting, endless, evaluated, model_fn, once, steps_of_input
from tests.fakes import assert_equal, config, dataset, final_state, mlp, named, saved_steps


class EvaluatedSteps(est.hooks.Hook):
    """An evaluation hook that notes which evaluations began, and how many batches each had."""

    def __init__(self):
        self.batches = []

    def begin(self, context):
        self.batches.append(0)

    def after_loop(self, view):
        self.batches[-1] = view.step


def run(model, max_steps=50, train=endless, hooks=(), **settings):
    return est.train_and_evaluate(
        model, est.TrainSpec(train, max_steps, hooks), est.EvalSpec(once, **settings)
    )


def test_every_checkpoint_is_evaluated_as_it_is_saved(tmp_path):
    model = counting(tmp_path)

    metrics, exports = run(model)

    assert evaluated(model) == {10: 10.0, 20: 20.0, 30: 30.0, 40: 40.0, 50: 50.0}
    assert metrics == {"loss": 50.0, "score": 0.0, "global_step": 50}
    assert exports == {}


def test_a_throttle_leaves_out_checkpoints_and_says_so_but_never_the_last(tmp_path, caplog):
    caplog.set_level("INFO", "estimator")
    model = counting(tmp_path)

    result = run(model, throttle_secs=600)

    assert list(evaluated(model)) == [10, 50]
    assert result.metrics["global_step"] == 50
    for step in (20, 30, 40):
        assert f"Checkpoint {step} is not evaluated" in caplog.text


def test_a_delay_holds_back_all_evaluations_but_the_last(tmp_path):
    model = counting(tmp_path)

    run(model, start_delay_secs=600)

    assert list(evaluated(model)) == [50]


def test_the_checkpoint_at_the_end_of_the_input_is_evaluated(tmp_path):
    model = counting(tmp_path)

    result = run(model, 1000, train=lambda: steps_of_input(34), throttle_secs=600)

    assert list(evaluated(model)) == [10, 34]
    assert result.metrics == {"loss": 34.0, "score": 0.0, "global_step": 34}


def test_without_max_steps_training_lasts_as_long_as_the_input(tmp_path):
    result = run(counting(tmp_path), None, train=lambda: steps_of_input(7))

    assert result.metrics["global_step"] == 7


def test_a_run_that_is_done_only_evaluates_the_checkpoint_that_there_is(tmp_path, caplog):
    run(counting(tmp_path))
    opened = []

    result = run(counting(tmp_path), train=lambda: opened.append(1))

    assert result.metrics == {"loss": 50.0, "score": 0.0, "global_step": 50}
    assert opened == []
    assert "50 >= 50" in caplog.text


def test_the_arguments_of_the_spec_reach_each_evaluation(tmp_path):
    model, log = counting(tmp_path), EvaluatedSteps()

    est.train_and_evaluate(
        model,
        est.TrainSpec(endless, max_steps=20),
        est.EvalSpec(lambda: steps_of_input(20), steps=3, name="test", hooks=[log]),
    )

    assert log.batches == [3, 3]
    assert list(evaluated(model, "test")) == [10, 20]


def test_saving_listeners_and_hooks_of_training_are_kept(tmp_path):
    heard = []

    class Listener:
        def before_save(self, view):
            heard.append(view.step)

        def after_save(self, step, path):
            heard.append(path.name)

    est.train_and_evaluate(
        counting(tmp_path),
        est.TrainSpec(
            endless,
            max_steps=100,
            hooks=[est.hooks.StopAtStepHook(last_step=15)],
            saving_listeners=[Listener()],
        ),
        est.EvalSpec(once),
    )

    assert heard == [10, "10", 15, "15"]


def test_a_stop_that_hears_of_evaluations_stops_behind_the_one_that_decides(tmp_path):
    # Lower is better, and the best is at 20; 20 steps later it is enough.
    scores = {"scores": [9.0, 1.0, 0.9, 0.95, 0.96, 0.97, 0.98]}
    patience = {"metric": "score", "patience_steps": 20}

    run(counting(tmp_path, params=scores), 30, hooks=[est.hooks.EarlyStoppingHook(**patience)])
    model = counting(tmp_path, params=scores)
    result = run(model, 100, hooks=[est.hooks.EarlyStoppingHook(**patience)])

    assert list(evaluated(model)) == [10, 20, 30, 40]
    assert result.metrics["global_step"] == 40


def test_evaluation_does_not_disturb_training(tmp_path):
    def model(folder):
        return est.Estimator(
            mlp,
            tmp_path / folder,
            config(iterations_per_loop=5, save_checkpoints_steps=10),
            params={"dropout": 0.3},
            train_batch_size=4,
            eval_batch_size=4,
        )

    def input_fn():
        return dataset(30).shuffle(seed=2).repeat()

    final = est.hooks.FinalOpsHook(lambda state: state)
    together = model("together")
    est.train_and_evaluate(
        together,
        est.TrainSpec(input_fn, max_steps=37, hooks=[final]),
        est.EvalSpec(lambda: dataset(10)),
    )

    alone = final_state(model("alone"), input_fn, max_steps=37)
    assert_equal(named(final.result), alone)


def test_the_programs_of_evaluation_are_compiled_once(tmp_path, compilations):
    model = counting(tmp_path)
    run(model, 20)
    before = compilations.count

    run(model, 60)

    assert list(evaluated(model)) == [10, 20, 30, 40, 50, 60]
    assert compilations.count == before


def test_a_checkpoint_that_a_run_left_unevaluated_is_evaluated_by_the_next(tmp_path):
    model = counting(tmp_path)
    model.train(endless, max_steps=20)

    run(model, 40)

    assert list(evaluated(model)) == [20, 30, 40]


def test_a_failed_evaluation_reaches_the_caller_as_itself_and_the_checkpoint_stays(tmp_path):
    error = OSError("the data is gone")

    def fails():
        raise error

    model = counting(tmp_path)
    with pytest.raises(OSError, match="the data is gone") as caught:
        est.train_and_evaluate(model, est.TrainSpec(endless, 50), est.EvalSpec(fails))

    assert caught.value is error
    assert saved_steps(model) == [10]


@pytest.mark.parametrize("size", ["train_batch_size", "eval_batch_size"])
def test_a_missing_batch_size_is_told_before_training(tmp_path, size):
    sizes = {"train_batch_size": 4, "eval_batch_size": 4, size: None}
    model = est.Estimator(mlp, tmp_path, config(), **sizes)
    opened = []

    with pytest.raises(ValueError, match=f"{size} is missing"):
        run(model, train=lambda: opened.append(1))

    assert opened == []


def test_arguments_in_the_wrong_places_are_told(tmp_path):
    specs = est.TrainSpec(endless, 10), est.EvalSpec(once)

    with pytest.raises(TypeError, match="train_spec must be of the type TrainSpec, got EvalSpec"):
        est.train_and_evaluate(counting(tmp_path), *reversed(specs))
    with pytest.raises(TypeError, match="estimator must be of the type Estimator, got function"):
        est.train_and_evaluate(model_fn, *specs)


def test_training_that_may_not_save_has_nothing_to_evaluate(tmp_path, caplog):
    class Veto(est.hooks.Hook):
        def before_save(self, view):
            return "no"

    result = run(counting(tmp_path), 20, hooks=[Veto()])

    assert result == ({}, {})
    assert "nothing was evaluated" in caplog.text


# Signals


class SigtermAt(est.hooks.Hook):
    """Sends this process SIGTERM behind the loop that ends at `step`."""

    def __init__(self, step):
        self.step = step

    def after_loop(self, view):
        if view.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_in_an_evaluation_stops_at_once_and_a_rerun_makes_up_for_it(tmp_path):
    class InTheSecond(est.hooks.Hook):
        evaluations = 0

        def begin(self, context):
            self.evaluations += 1

        def after_loop(self, view):
            if self.evaluations == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    model = counting(tmp_path, iterations_per_loop=1)
    with pytest.raises(est.PreemptedError) as caught:
        est.train_and_evaluate(
            model,
            est.TrainSpec(endless, 40),
            est.EvalSpec(lambda: steps_of_input(20), hooks=[InTheSecond()]),
        )

    assert (caught.value.step, caught.value.code) == (20, 143)
    assert list(evaluated(model)) == [10]
    assert saved_steps(model) == [10, 20]
    assert run(counting(tmp_path), 40).metrics["global_step"] == 40
    assert evaluated(model) == {10: 10.0, 20: 20.0, 30: 30.0, 40: 40.0}


@pytest.mark.parametrize("step", [20, 25])
def test_sigterm_in_training_leaves_the_evaluation_to_the_rerun(tmp_path, step):
    model = counting(tmp_path)
    with pytest.raises(est.PreemptedError) as caught:
        run(model, 40, hooks=[SigtermAt(step)])

    assert caught.value.step == step
    assert step not in evaluated(model)
    run(counting(tmp_path), 40)
    assert list(evaluated(model)) == sorted({10, 20, 30, 40} | {step})


def test_sigterm_in_the_last_evaluation_is_made_up_for_by_the_rerun(tmp_path):
    model = counting(tmp_path)
    with pytest.raises(est.PreemptedError) as caught:
        est.train_and_evaluate(
            model,
            est.TrainSpec(endless, 5),
            est.EvalSpec(once, hooks=[SigtermAt(1)]),
        )

    assert caught.value.step == 5
    assert evaluated(model) == {}
    assert run(counting(tmp_path), 5).metrics["loss"] == 5.0
