import dataclasses
import logging
import math

import pytest

from hooks import EarlyStoppingHook, append_eval_result, eval_dir

CURVE = {10: 1.0, 20: 0.90, 30: 0.95, 40: 0.96, 50: 0.97}


@pytest.fixture
def begin(make_context, tmp_path):
    """Begins a run of the hook in tmp_path at a step."""

    def begin(hook, step=0, mode="train"):
        hook.begin(dataclasses.replace(make_context(step=step, mode=mode), model_dir=tmp_path))
        return hook

    return begin


@pytest.fixture
def evaluated(tmp_path):
    """Writes down evaluations: `{step: value}` of `metric`."""

    def evaluated(values, metric="loss", name=None):
        for step, value in values.items():
            append_eval_result(eval_dir(tmp_path, name), step, {metric: value})

    return evaluated


def stopped_at(hook, evaluated, curve, **given):
    """Returns the step at which the hook stops a run that evaluates at the steps of `curve`."""
    for step, value in curve.items():
        evaluated({step: value}, **given)
        if hook.before_loop(step) is not None:
            return step
    return None


@pytest.mark.parametrize(
    ("curve", "arguments", "expected"),
    [
        (CURVE, {"patience_steps": 20}, 40),
        (CURVE, {"patience_steps": 10}, 30),
        (CURVE, {"patience_steps": 31}, None),
        (CURVE, {"patience_steps": 20, "min_steps": 50}, 50),
        (CURVE, {"patience_steps": 20, "min_delta": 0.2}, 30),
        ({step: -value for step, value in CURVE.items()}, {"patience_steps": 20}, 30),
        (
            {step: -value for step, value in CURVE.items()},
            {"patience_steps": 20, "mode": "max"},
            40,
        ),
        ({10: 1.0, 20: 1.0, 30: 1.0}, {"patience_steps": 20}, 30),
        ({10: math.nan, 20: 0.5, 30: math.nan, 40: math.nan}, {"patience_steps": 20}, 40),
        ({10: math.nan, 20: math.nan, 30: math.nan}, {"patience_steps": 20}, 30),
        ({10: math.inf, 20: 5.0, 30: 4.0}, {"patience_steps": 20}, None),
        ({10: -math.inf, 20: -math.inf}, {"patience_steps": 10}, 20),
    ],
)
def test_it_stops_when_the_best_evaluation_is_patience_steps_old(
    begin, evaluated, curve, arguments, expected
):
    assert stopped_at(begin(EarlyStoppingHook(**arguments)), evaluated, curve) == expected


def test_a_resumed_run_is_judged_like_one_that_was_not_interrupted(begin, evaluated):
    evaluated({step: CURVE[step] for step in (10, 20, 30)})
    hook = begin(EarlyStoppingHook(patience_steps=20), step=30)
    assert hook.before_loop(30) is None
    evaluated({40: CURVE[40]})
    assert "best at step 20, with 0.9, and no better 20 steps later" in hook.before_loop(40)


def test_evaluations_of_steps_that_a_resumed_run_has_yet_to_make_do_not_count(begin, evaluated):
    evaluated(CURVE)
    hook = begin(EarlyStoppingHook(patience_steps=20), step=30)
    assert hook.before_loop(30) is None
    assert hook.before_loop(39) is None
    assert hook.before_loop(40) is not None


def test_a_step_that_is_evaluated_again_counts_as_it_was_last(begin, evaluated):
    evaluated({10: 0.1, 20: 0.5})
    evaluated({10: 1.0})
    assert begin(EarlyStoppingHook(patience_steps=10)).before_loop(20) is None


def test_the_name_of_an_evaluation_tells_which_ones_count(begin, evaluated):
    evaluated(CURVE, name="train")
    hook = begin(EarlyStoppingHook(patience_steps=20, name="test"))
    evaluated({10: 1.0, 20: 0.9}, name="test")
    assert hook.before_loop(50) is None


def test_a_metric_that_is_not_there_is_an_error_that_lists_those_that_are(begin, evaluated):
    evaluated({10: 0.5}, metric="accuracy")
    hook = begin(EarlyStoppingHook("acuracy", patience_steps=20, mode="max"))
    with pytest.raises(ValueError, match=r"'acuracy'.*step 10.*\['accuracy'\]"):
        hook.before_loop(10)


def test_a_run_without_any_evaluation_is_told_of(begin, make_view, caplog):
    hook = begin(EarlyStoppingHook(patience_steps=20))
    assert hook.before_loop(100) is None
    with caplog.at_level(logging.WARNING):
        hook.end(make_view(90, 100))
    assert "no evaluations in" in caplog.text


def test_a_run_with_evaluations_ends_in_silence(begin, evaluated, make_view, caplog):
    hook = begin(EarlyStoppingHook(patience_steps=20))
    evaluated({100: 1.0})
    hook.end(make_view(90, 100))
    assert caplog.text == ""


def test_evaluations_of_another_run_are_forgotten(begin, make_context, evaluated, tmp_path):
    hook = begin(EarlyStoppingHook(patience_steps=20))
    assert stopped_at(hook, evaluated, CURVE) == 40
    hook.begin(dataclasses.replace(make_context(), model_dir=tmp_path / "other"))
    assert hook.before_loop(100) is None


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_it_is_for_training_only(begin, mode):
    with pytest.raises(ValueError, match=rf"training.*{mode}.*train\(\)"):
        begin(EarlyStoppingHook(patience_steps=20), mode=mode)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"patience_steps": 0}, "patience_steps"),
        ({"patience_steps": 1, "mode": "lower"}, "'lower'.*'min'.*'max'"),
        ({"patience_steps": 1, "min_delta": -0.1}, "min_delta.*-0.1"),
        ({"patience_steps": 1, "min_steps": -1}, "min_steps"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        EarlyStoppingHook(**arguments)
