from __future__ import annotations

import pytest

from estimator.loop_shape import UNROLLED_STEPS, LoopShape, ShapeChoice

DEVICE_LOOP, UNROLLED, PER_STEP = LoopShape.DEVICE_LOOP, LoopShape.UNROLLED, LoopShape.PER_STEP


def train(choice, secs_of, *, steps, per_dispatch=100, known=True, compile_secs=0.1, dispatch=0.0):
    """Runs `steps` steps as a loop program would; returns the shapes by step and what was compiled.

    `secs_of[shape]` are the seconds of a step, `dispatch` those of a dispatch besides.
    """
    shapes, compiled = [], []
    while len(shapes) < steps:
        left = steps - len(shapes)
        run = choice.next_run(min(per_dispatch, left), left if known else None)
        if run.shape not in compiled:
            compiled.append(run.shape)
            choice.compiled(
                run.shape, compile_secs * (UNROLLED_STEPS if run.shape is UNROLLED else 1)
            )
        if run.timed:
            choice.timed(run, dispatch + run.steps * secs_of[run.shape])
        else:
            choice.untimed(run)
        assert 1 <= run.steps <= min(per_dispatch, left)
        shapes += [run.shape] * run.steps
    return shapes, compiled


def test_a_long_run_of_small_steps_ends_in_the_device_loop():
    secs = {PER_STEP: 60e-6, DEVICE_LOOP: 35e-6, UNROLLED: 40e-6}
    choice = ShapeChoice(fixed=None, first=PER_STEP)
    shapes, _ = train(choice, secs, steps=1_000_000)
    assert shapes[0] is PER_STEP
    assert choice.settled is DEVICE_LOOP
    assert shapes.count(DEVICE_LOOP) > 0.98 * len(shapes)


def test_a_step_that_a_device_loop_slows_down_is_hardly_run_in_one():
    secs = {PER_STEP: 0.06, DEVICE_LOOP: 0.6, UNROLLED: 0.05}
    choice = ShapeChoice(fixed=None, first=PER_STEP)
    shapes, _ = train(choice, secs, steps=2000, compile_secs=0.5)
    assert choice.settled is UNROLLED
    assert shapes.count(DEVICE_LOOP) <= 2


def test_no_shape_is_compiled_that_a_short_run_cannot_win_back(caplog):
    caplog.set_level("INFO", logger="estimator")
    secs = {PER_STEP: 60e-6, DEVICE_LOOP: 35e-6, UNROLLED: 40e-6}
    _, compiled = train(ShapeChoice(fixed=None, first=PER_STEP), secs, steps=1000)
    assert compiled == [PER_STEP]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "per_step, at 60 us/step. device_loop is not tried before" in message


@pytest.mark.parametrize("first", LoopShape)
def test_a_run_of_less_than_five_seconds_keeps_one_shape(first):
    # So that it gives the same bits each time, and so does one that is resumed half way.
    secs = {PER_STEP: 12e-3, DEVICE_LOOP: 12e-3, UNROLLED: 12e-3}
    secs[first] = 24e-3
    _, compiled = train(ShapeChoice(fixed=None, first=first), secs, steps=200, compile_secs=0.001)
    assert compiled == [first]


def test_a_run_of_unknown_length_tries_shapes_once_it_has_lasted():
    secs = {PER_STEP: 1e-3, DEVICE_LOOP: 0.5e-3, UNROLLED: 0.7e-3}
    choice = ShapeChoice(fixed=None, first=PER_STEP)
    shapes, compiled = train(choice, secs, steps=40_000, known=False, compile_secs=4)
    first = shapes.index(DEVICE_LOOP)
    assert first * 1e-3 == pytest.approx(2 * 4, rel=0.1)  # when half of it would pay for it
    assert compiled[:2] == [PER_STEP, DEVICE_LOOP]


def test_runs_of_a_few_steps_each_add_up_to_one_that_lasts():
    secs = {PER_STEP: 1e-3, DEVICE_LOOP: 0.5e-3, UNROLLED: 0.7e-3}
    choice = ShapeChoice(fixed=None, first=PER_STEP)
    for _ in range(1200):
        shapes, _ = train(choice, secs, steps=5, per_dispatch=5)
    assert set(shapes) == {DEVICE_LOOP}


def test_a_difference_within_the_noise_changes_nothing():
    secs = {PER_STEP: 1e-3, DEVICE_LOOP: 0.98e-3, UNROLLED: 0.99e-3}
    choice = ShapeChoice(fixed=None, first=PER_STEP)
    train(choice, secs, steps=100_000)
    assert choice.settled is PER_STEP


def test_the_dispatch_of_short_samples_is_not_mistaken_for_slow_steps():
    secs = {PER_STEP: 60e-6, DEVICE_LOOP: 35e-6, UNROLLED: 50e-6}
    choice = ShapeChoice(fixed=None, first=PER_STEP)
    shapes, _ = train(choice, secs, steps=100_000, dispatch=200e-6)
    assert shapes[-1] is DEVICE_LOOP


def test_accelerators_start_with_the_device_loop():
    choice = ShapeChoice(fixed=None, first=DEVICE_LOOP)
    assert choice.next_run(100, None).shape is DEVICE_LOOP


def test_loops_of_one_step_can_choose_too():
    secs = {PER_STEP: 1e-3, DEVICE_LOOP: 0.5e-3, UNROLLED: 0.7e-3}
    choice = ShapeChoice(fixed=None, first=PER_STEP)
    shapes, compiled = train(choice, secs, steps=10_000, per_dispatch=1)
    assert shapes[-1] is DEVICE_LOOP
    assert UNROLLED not in compiled


@pytest.mark.parametrize("shape", LoopShape)
def test_a_given_shape_is_taken_at_once_and_never_timed(shape):
    choice = ShapeChoice(fixed=shape, first=PER_STEP)
    assert choice.next_run(7, 100) == (shape, 7, False, True)
