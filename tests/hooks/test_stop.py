import pytest

from hooks import StopAfterSecsHook, StopAtStepHook


def test_last_step_stops_the_run_exactly_there(run_loops):
    assert run_loops([StopAtStepHook(last_step=13)], last_step=100, loop_steps=10) == [
        (0, 10),
        (10, 13),
    ]


def test_num_steps_counts_from_where_the_run_starts(run_loops):
    hook = StopAtStepHook(num_steps=13)
    assert run_loops([hook], start=7, last_step=100, loop_steps=10) == [(7, 17), (17, 20)]


def test_num_steps_counts_anew_in_each_run(run_loops):
    hook = StopAtStepHook(num_steps=3)
    assert run_loops([hook], start=0, last_step=100, loop_steps=10) == [(0, 3)]
    assert run_loops([hook], start=3, last_step=100, loop_steps=10) == [(3, 6)]


def test_the_reason_names_the_step(make_view):
    hook = StopAtStepHook(last_step=20)
    assert hook.after_loop(make_view(10, 19)) is None
    assert "20" in (hook.after_loop(make_view(19, 20)) or "")


def test_a_run_that_starts_past_the_last_step_takes_a_single_step(run_loops):
    assert run_loops([StopAtStepHook(last_step=5)], start=9, last_step=100, loop_steps=10) == [
        (9, 10)
    ]


def test_it_never_reads_a_value(make_view, run_loops):
    run_loops([StopAtStepHook(last_step=5)], last_step=10, loop_steps=2)
    assert make_view.reads == []


@pytest.mark.parametrize("given", [{}, {"num_steps": 5, "last_step": 10}])
def test_exactly_one_of_the_arguments_must_be_given(given):
    with pytest.raises(ValueError, match="num_steps or last_step"):
        StopAtStepHook(**given)


@pytest.mark.parametrize("name", ["num_steps", "last_step"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (2.5, TypeError), (True, TypeError)])
def test_a_step_count_must_be_a_whole_number_above_zero(name, value, error):
    with pytest.raises(error, match=f"{name} must be a positive int"):
        StopAtStepHook(**{name: value})


def test_a_time_limit_stops_at_the_first_loop_end_after_it(clock, make_view, make_context):
    hook = StopAfterSecsHook(60, clock)
    clock.advance(1000)  # before the run begins: does not count
    hook.begin(make_context())
    clock.advance(59)
    assert hook.after_loop(make_view(0, 5)) is None
    clock.advance(1)
    reason = hook.after_loop(make_view(5, 10))
    assert reason == "StopAfterSecsHook: 60 s have passed"


def test_a_time_limit_counts_anew_in_each_run(clock, make_view, make_context):
    hook = StopAfterSecsHook(60, clock)
    for _ in range(2):
        hook.begin(make_context())
        clock.advance(59)
        assert hook.after_loop(make_view(0, 5)) is None


@pytest.mark.parametrize("secs", [0, -1, "10m", True])
def test_a_time_limit_must_be_a_positive_number(secs):
    with pytest.raises(ValueError, match="secs must be a positive number of seconds"):
        StopAfterSecsHook(secs)
