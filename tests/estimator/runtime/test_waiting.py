from __future__ import annotations

import logging
import math

import pytest

from estimator.runtime import CancelledError, DeadlineExceededError, SessionClosedError
from estimator.runtime.waiting import Deadline, Waits, checked_timeout


class PassingDeadline(Deadline):
    """Not over when the work begins, and over when somebody first waits for it."""

    def __init__(self, begun):
        super().__init__(0.01)
        self._begun = begun
        self._first = True

    def remaining(self):
        if self._first:
            self._first = False
            return 0.01
        assert self._begun.wait(60)
        return 0.0


@pytest.fixture
def waits():
    made = Waits("session 'test'")
    yield made
    made.cancel()
    made.join()


def test_work_returns_its_result_to_the_caller(waits):
    assert waits.run(lambda: 7, Deadline(60), "work") == 7


def test_work_raises_its_own_error_in_the_caller(waits):
    error = KeyError("k")

    def fail():
        raise error

    with pytest.raises(KeyError) as raised:
        waits.run(fail, Deadline(60), "work")
    assert raised.value is error
    assert raised.traceback[-1].name == "fail"


def test_a_timeout_error_of_the_work_itself_is_not_taken_for_the_deadline(waits):
    error = TimeoutError("of the work")

    def fail():
        raise error

    with pytest.raises(TimeoutError) as raised:
        waits.run(fail, Deadline(60), "work")
    assert raised.value is error


def test_work_that_takes_too_long_is_left_at_the_deadline(waits, gate):
    with pytest.raises(
        DeadlineExceededError, match=r"running f took longer than timeout_secs=0\.01"
    ):
        waits.run(gate.hold, PassingDeadline(gate.reached), "running f")
    gate.open()


def test_a_deadline_that_is_over_starts_no_work(waits, monkeypatch):
    deadline = Deadline(1.0)
    monkeypatch.setattr(deadline, "remaining", lambda: 0.0)
    started = []
    with pytest.raises(DeadlineExceededError, match="was over before running f began"):
        waits.run(lambda: started.append(1), deadline, "running f")
    assert started == []


def test_an_infinite_deadline_waits_and_can_still_be_cancelled(waits, gate, call):
    caller = call(lambda: waits.run(gate.hold, Deadline(math.inf), "work"))
    gate.await_reached()
    waits.cancel()
    with pytest.raises(CancelledError, match="session 'test' was closed before"):
        caller.result()


def test_an_error_after_the_deadline_is_logged(waits, gate, caplog):
    def fail():
        gate.hold()
        raise KeyError("late")

    with pytest.raises(DeadlineExceededError):
        waits.run(fail, PassingDeadline(gate.reached), "work")
    gate.open()
    with caplog.at_level(logging.WARNING, "estimator"):
        waits.join()
    assert "Failed after its deadline" in caplog.text
    assert "KeyError: 'late'" in caplog.text


def test_an_error_after_closing_is_logged(waits, gate, call, caplog):
    def fail():
        gate.hold()
        raise KeyError("late")

    caller = call(lambda: waits.run(fail, Deadline(60), "work"))
    gate.await_reached()
    waits.cancel()
    with pytest.raises(CancelledError):
        caller.result()
    gate.open()
    with caplog.at_level(logging.WARNING, "estimator"):
        waits.join()
    assert "Failed after session 'test' was closed" in caplog.text
    assert "KeyError: 'late'" in caplog.text


def test_nothing_can_be_waited_for_once_closed(waits):
    assert waits.cancel() is True
    assert waits.cancel() is False
    with pytest.raises(SessionClosedError, match="session 'test' is closed"):
        waits.run(lambda: 1, Deadline(60), "work")


@pytest.mark.parametrize("timeout", [0, -1, math.nan, True, "3"])
def test_a_timeout_that_is_no_positive_number_is_refused(timeout):
    with pytest.raises(ValueError, match=r"timeout_secs=.* must be a positive number of seconds"):
        checked_timeout("timeout_secs", timeout)


@pytest.mark.parametrize("timeout", [None, 1, 0.5, math.inf])
def test_none_and_positive_numbers_are_timeouts(timeout):
    assert checked_timeout("timeout_secs", timeout) is timeout
