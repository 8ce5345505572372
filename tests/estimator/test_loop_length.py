from __future__ import annotations

import pytest

from estimator.loop_length import FixedLength, TimedLength, loop_length


def simulate(length, step_secs, loops, overhead_secs=5e-4, compile_secs=3.0):
    """Returns the wall times of `loops` loops whose step takes `step_secs(loop)`."""
    times = []
    for loop in range(loops):
        steps = length.steps
        secs = overhead_secs + steps * step_secs(loop) + (compile_secs if loop == 0 else 0.0)
        length.observe(steps, secs)
        times.append(secs)
    return times


@pytest.mark.parametrize("step_secs", [20e-6, 1e-3, 0.05, 2.0])
@pytest.mark.parametrize("asked, secs", [("30s", 30.0), ("5m", 300.0), ("1h", 3600.0)])
def test_a_duration_is_met_within_ten_percent_by_the_fifth_loop(step_secs, asked, secs):
    times = simulate(loop_length(asked), lambda loop: step_secs, 8)
    assert all(abs(time - secs) <= 0.1 * secs for time in times[4:])


def test_a_step_time_that_changes_is_followed():
    times = simulate(loop_length("30s"), lambda loop: 1e-3 if loop < 8 else 4e-3, 12)
    assert abs(times[7] - 30) < 3
    assert abs(times[9] - 30) < 3


def test_the_time_of_the_first_loop_with_its_compilation_is_not_used():
    length = loop_length("30s")
    length.observe(1, 1000.0)
    assert length.steps == 1


def test_steps_longer_than_the_duration_run_one_by_one():
    assert simulate(loop_length("1s"), lambda loop: 7.0, 6)[-1] == pytest.approx(7.0, abs=0.1)


def test_auto_is_about_a_second():
    assert simulate(loop_length("auto"), lambda loop: 1e-3, 6)[-1] == pytest.approx(1.0, rel=0.1)


def test_a_number_of_steps_stays_what_it_is():
    length = loop_length(7)
    length.observe(7, 100.0)
    assert isinstance(length, FixedLength)
    assert length.steps == 7
    assert not length.learning


@pytest.mark.parametrize("text, secs", [("500ms", 0.5), ("1.5h", 5400.0), ("2m", 120.0)])
def test_durations_are_read_with_their_units(text, secs):
    length = loop_length(text)
    assert isinstance(length, TimedLength)
    assert length.secs == secs


@pytest.mark.parametrize("text", ["", "30", "s", "0s", "-5s", "30 s", "1d", "automatic", "1h30m"])
def test_other_strings_are_refused_with_examples(text):
    with pytest.raises(ValueError, match="'30s', '5m', '1h'"):
        loop_length(text)


@pytest.mark.parametrize("value, error", [(0, ValueError), (-1, ValueError), (2.5, TypeError)])
def test_numbers_that_are_no_positive_ints_are_refused(value, error):
    with pytest.raises(error, match="iterations_per_loop"):
        loop_length(value)
