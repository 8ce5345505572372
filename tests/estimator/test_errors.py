"""Threads that fail together: the root cause reaches the caller, and nothing is left behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading

import pytest

from estimator.errors import Rendezvous
from input_pipeline import ClosableQueue, QueueClosed

WAIT_SECS = 10  # only a test that fails waits for so long


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in set(threading.enumerate()) - before] == []


def queue(rendezvous=None):
    made = ClosableQueue(1, name="test")
    if rendezvous is not None:
        rendezvous.on_close(made.close)
    return made


def failing(error):
    def target():
        raise error

    return target


def test_a_run_without_errors_closes_what_is_registered_and_joins_its_threads():
    closed = []
    with Rendezvous() as rendezvous:
        rendezvous.on_close(closed.append)
        thread = rendezvous.spawn("worker", lambda: None)

    assert closed == [None]
    assert not thread.is_alive()


def test_the_error_of_a_thread_is_raised_in_the_caller_as_itself():
    error = ValueError("bad record 17")

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        rendezvous.spawn("worker", failing(error)).join()

    assert caught.value is error


def test_the_error_of_a_thread_wakes_the_body_that_waits():
    error = ValueError("bad record 17")

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        waiting = queue(rendezvous)
        rendezvous.spawn("worker", failing(error))
        waiting.get()

    assert caught.value is error


def test_the_error_of_the_body_wakes_the_threads_that_wait():
    error = KeyError("body")
    woken = []

    with pytest.raises(KeyError) as caught, Rendezvous() as rendezvous:
        waiting = queue(rendezvous)

        def worker():
            try:
                waiting.get()
            finally:
                woken.append(True)

        rendezvous.spawn("worker", worker)
        raise error

    assert caught.value is error
    assert woken == [True]


def test_what_is_registered_after_a_failure_is_closed_too():
    error = ValueError("early")
    closed = []

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        rendezvous.spawn("first", failing(error)).join()
        late = queue(rendezvous)
        rendezvous.on_close(closed.append)
        rendezvous.spawn("second", lambda: late.get())

    assert caught.value is error
    assert closed == [error]


def test_a_closed_queue_never_wins_over_what_closed_it():
    error = ValueError("root")

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        waiting = queue()
        rendezvous.on_close(lambda _: waiting.close())  # without the reason
        rendezvous.spawn("victim", lambda: waiting.get())
        rendezvous.spawn("culprit", failing(error))
        waiting.get()

    assert caught.value is error


def test_a_closed_queue_in_the_body_does_not_hide_the_error_of_the_thread():
    error = ValueError("root")

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        rendezvous.spawn("culprit", failing(error)).join()
        raise QueueClosed("the body saw only this")

    assert caught.value is error


@pytest.mark.parametrize(
    "cancelled", [concurrent.futures.CancelledError(), asyncio.CancelledError()]
)
def test_what_was_cancelled_never_wins_over_the_reason_even_if_it_fails_first(cancelled):
    error, noticed = ValueError("root"), threading.Event()

    def culprit():
        noticed.wait(WAIT_SECS)  # its victim is quicker
        raise error

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        rendezvous.on_close(lambda _: noticed.set())
        waiting = queue()
        rendezvous.owns(waiting)
        rendezvous.spawn("culprit", culprit)
        rendezvous.spawn("victim", failing(cancelled))
        waiting.get()

    assert caught.value is error
    assert any("Thread 'victim' failed too" in note for note in error.__notes__)


def test_what_was_cancelled_for_no_other_reason_is_raised():
    with pytest.raises(concurrent.futures.CancelledError), Rendezvous() as rendezvous:
        rendezvous.spawn("victim", failing(concurrent.futures.CancelledError()))


def test_of_many_threads_that_fail_at_once_one_is_raised_and_all_others_are_notes():
    together = threading.Barrier(8)

    def fail(index):
        together.wait(WAIT_SECS)
        raise ValueError(f"number {index}")

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        waiting = queue()
        rendezvous.owns(waiting)
        for index in range(8):
            rendezvous.spawn(f"thread {index}", functools.partial(fail, index))
        waiting.get()

    words = [str(caught.value), *caught.value.__notes__]
    assert sorted(text[-1] for text in words) == list("01234567")


def test_a_second_error_becomes_a_note_of_the_first():
    first, second = ValueError("first"), KeyError("second")
    failed = threading.Event()

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        rendezvous.on_close(lambda _: failed.set())

        def late():
            failed.wait(WAIT_SECS)
            raise second

        rendezvous.spawn("late", late)
        rendezvous.spawn("early", failing(first))
        failed.wait(WAIT_SECS)

    assert caught.value is first
    assert any("late" in note and "KeyError" in note for note in first.__notes__)


def test_an_error_keeps_the_traceback_of_its_thread():
    def deep():
        raise ValueError("deep")

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        rendezvous.spawn("worker", deep)

    assert "deep" in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize("how", ["normal end", "error in the body", "error in a thread"])
def test_a_closer_that_fails_does_not_keep_the_others_from_closing(how):
    root, cleanup = ValueError("root"), RuntimeError("cleanup")
    closed = []

    with pytest.raises((ValueError, RuntimeError)) as caught, Rendezvous() as rendezvous:

        def fail(_):
            raise cleanup

        rendezvous.on_close(fail)
        waiting = queue(rendezvous)
        rendezvous.on_close(closed.append)

        def worker():
            waiting.get()

        rendezvous.spawn("waiting", worker)
        if how == "error in a thread":
            rendezvous.spawn("culprit", failing(root)).join()
        if how == "error in the body":
            raise root

    assert len(closed) == 1
    assert caught.value is (cleanup if how == "normal end" else root)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_interrupts_of_the_body_pass_through(error):
    with pytest.raises(type(error)) as caught, Rendezvous() as rendezvous:
        waiting = queue(rendezvous)
        rendezvous.spawn("worker", lambda: waiting.get())
        raise error

    assert caught.value is error


def test_a_thread_that_stays_in_user_code_is_named_and_does_not_hold_the_caller(
    monkeypatch, caplog
):
    monkeypatch.setattr("estimator.errors._JOIN_SECS", 0.01)
    release = threading.Event()

    def stay():
        release.wait(WAIT_SECS)

    with Rendezvous() as rendezvous:
        thread = rendezvous.spawn("stubborn", stay)

    assert "stubborn" in caplog.text
    release.set()
    thread.join()
