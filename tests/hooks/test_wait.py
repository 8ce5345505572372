import dataclasses
import logging

import pytest

from hooks import GlobalStepWaiterHook


@pytest.fixture
def waiter(clock):
    """Makes the hook for a run whose step, at each look, is the next of `steps`."""

    def make(steps, **arguments):
        left = list(steps)
        return GlobalStepWaiterHook(
            10, lambda: left.pop(0), poll_secs=5.0, sleep=clock.advance, clock=clock, **arguments
        )

    return make


def test_it_waits_until_the_step_is_reached(waiter, make_context, clock, caplog):
    caplog.set_level(logging.INFO)
    waiter([None, 4, 9, 12]).begin(make_context())
    assert clock.now == 1000 + 3 * 5
    assert [record.getMessage() for record in caplog.records] == [
        "Waiting until the other run, now at step None, has reached step 10.",
        "The other run is at step 12: this one goes on.",
    ]


def test_it_does_not_wait_for_what_is_reached_already(waiter, make_context, clock, caplog):
    caplog.set_level(logging.INFO)
    waiter([10]).begin(make_context())
    assert clock.now == 1000
    assert caplog.text == ""


def test_a_step_that_is_not_reached_in_time_is_an_error(waiter, make_context, clock):
    with pytest.raises(TimeoutError, match=r"after 10 s .* at step 3 .*not yet at 10"):
        waiter([3] * 10, timeout_secs=10).begin(make_context())
    assert clock.now == 1010


def test_a_signal_to_stop_ends_the_wait(waiter, make_context, clock):
    context = dataclasses.replace(make_context(), stop_requested=lambda: clock.now > 1006)
    waiter([3] * 10).begin(context)
    assert clock.now == 1010


def test_an_error_of_the_look_reaches_the_caller(make_context):
    def read_step():
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        GlobalStepWaiterHook(10, read_step).begin(make_context())


@pytest.mark.parametrize("name", ["timeout_secs", "poll_secs"])
def test_times_must_be_positive(name):
    with pytest.raises(ValueError, match=name):
        GlobalStepWaiterHook(10, lambda: 0, **{name: 0})
