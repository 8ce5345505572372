import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks import EverySecs, EverySteps, Hook


@given(st.integers(1, 20), st.integers(0, 100), st.integers(1, 50))
def test_every_steps_is_due_when_a_loop_crosses_or_reaches_a_multiple(steps, before, length):
    after = before + length
    crossed = any(step % steps == 0 for step in range(before + 1, after + 1))
    assert EverySteps(steps).due(before, after) == crossed


@given(st.integers(1, 20), st.integers(0, 100))
def test_the_next_step_is_the_first_multiple_after_the_step(steps, step):
    expected = next(at for at in range(step + 1, step + steps + 1) if at % steps == 0)
    assert EverySteps(steps).next_step(step) == expected


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "10"])
def test_every_steps_refuses_what_is_no_positive_int(steps):
    with pytest.raises(ValueError, match="positive int"):
        EverySteps(steps)


@pytest.mark.parametrize("secs", [0, -1.0, True, "10", float("nan")])
def test_every_secs_refuses_what_is_no_positive_number(secs):
    with pytest.raises(ValueError, match="positive number of seconds"):
        EverySecs(secs)


def test_every_secs_is_due_once_the_period_has_passed_since_it_was_last_due(clock):
    every = EverySecs(10, clock)
    clock.advance(9.5)
    assert not every.due(0, 1)
    clock.advance(2.5)  # 12 s after it was made
    assert every.due(1, 2)
    clock.advance(9.5)
    assert not every.due(2, 3)
    clock.advance(0.5)  # 10 s after it was due
    assert every.due(3, 4)


def test_every_secs_asks_for_no_exact_step():
    assert EverySecs(10).next_step(5) is None


def test_a_hook_that_overrides_nothing_neither_cuts_nor_stops_nor_vetoes(make_view, run_loops):
    assert run_loops([Hook()], last_step=7, loop_steps=5) == [(0, 5), (5, 7)]
    assert Hook().before_save(make_view(0, 5)) is None
    assert make_view.reads == []
