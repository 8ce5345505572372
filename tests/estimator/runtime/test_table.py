from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimator.runtime import CancelledError, DeadlineExceededError, Session, SessionClosedError
from estimator.runtime.waiting import Waits

X = np.arange(3, dtype=np.float32)


@pytest.fixture
def waiting(monkeypatch):
    """Tells when a thread begins to wait for what is not there yet."""
    reached = threading.Event()
    wait = Waits.wait

    def watched(self, promise, deadline, what):
        if not promise.done():
            reached.set()
        return wait(self, promise, deadline, what)

    monkeypatch.setattr(Waits, "wait", watched)
    return reached


def test_threads_that_ask_for_the_same_program_compile_it_once(session, gate, call, waiting):
    traces = []

    def fn(x):
        traces.append(1)
        return gate.tracing(x)

    first = call(lambda: session.run(fn, (X,)))
    gate.await_reached()
    second = call(lambda: session.run(fn, (X,)))
    assert waiting.wait(60)
    gate.open()
    for caller in (first, second):
        np.testing.assert_array_equal(caller.result(), X + 1)
    assert traces == [1]
    assert (session.counters().misses, session.counters().hits) == (1, 1)


def test_a_compile_does_not_hold_up_other_programs(session, gate, call):
    slow = call(lambda: session.run(gate.tracing, (X,)))
    gate.await_reached()
    np.testing.assert_array_equal(session.run(jnp.square, (X,)), X**2)
    np.testing.assert_array_equal(session.run(jnp.square, (X,)), X**2)
    assert session.counters().programs == 1
    gate.open()
    np.testing.assert_array_equal(slow.result(), X + 1)


def test_waiting_for_another_threads_compile_ends_at_the_deadline(session, gate, call):
    slow = call(lambda: session.run(gate.tracing, (X,)))
    gate.await_reached()
    with pytest.raises(DeadlineExceededError, match="compiling tracing took longer"):
        session.run(gate.tracing, (X,), timeout_secs=0.01)
    gate.open()
    slow.result()


def test_closing_cancels_those_who_wait_for_a_compile_and_the_one_who_compiles(gate, call, waiting):
    session = Session()
    first = call(lambda: session.run(gate.tracing, (X,)))
    gate.await_reached()
    second = call(lambda: session.run(gate.tracing, (X,)))
    assert waiting.wait(60)
    session.close()
    with pytest.raises(CancelledError):
        second.result()
    gate.open()
    with pytest.raises(CancelledError):
        first.result()
    with pytest.raises(SessionClosedError):
        session.run(gate.tracing, (X,))


def test_all_who_wait_for_a_compile_that_fails_get_its_error(session, gate, call, waiting):
    error = KeyError("of the function")

    def fail(x):
        gate.hold()
        raise error

    first = call(lambda: session.run(fail, (X,)))
    gate.await_reached()
    second = call(lambda: session.run(fail, (X,)))
    assert waiting.wait(60)
    gate.open()
    for caller in (first, second):
        with pytest.raises(KeyError) as raised:
            caller.result()
        assert raised.value is error


def test_a_compile_that_failed_is_tried_again(session):
    attempts = []

    def fail_once(x):
        attempts.append(1)
        if len(attempts) == 1:
            raise KeyError("first")
        return x

    with pytest.raises(KeyError):
        session.run(fail_once, (X,))
    np.testing.assert_array_equal(session.run(fail_once, (X,)), X)
    assert session.counters().programs == 1


def test_an_interrupt_reaches_only_the_thread_that_compiles(session, gate, call, waiting):
    def interrupted(x):
        gate.hold()
        raise KeyboardInterrupt

    first = call(lambda: session.run(interrupted, (X,)))
    gate.await_reached()
    second = call(lambda: session.run(interrupted, (X,)))
    assert waiting.wait(60)
    gate.open()
    with pytest.raises(KeyboardInterrupt):
        first.result()
    with pytest.raises(CancelledError, match="thread that compiled interrupted was interrupted"):
        second.result()


def test_a_function_that_runs_itself_through_the_session_does_not_wait_for_itself(session, call):
    def recursive(x):
        return session.run(recursive, (X,))

    with pytest.raises(RuntimeError, match="recursive was run by its session while the session"):
        call(lambda: session.run(recursive, (X,))).result()


@pytest.mark.parametrize(
    "other",
    [
        {"feeds": (X[:2],)},
        {"feeds": (X.astype(np.int32),)},
        {"feeds": ([X],)},
        {"donate": 0},
        {"fetches": "0"},
    ],
    ids=["shape", "dtype", "structure", "donation", "fetches"],
)
def test_what_differs_is_compiled_apart(session, other):
    def pair(x):
        return jax.tree.leaves(x)[0], x

    session.run(pair, (X,))
    session.run(pair, **{"feeds": (jnp.array(X),), **other})
    assert (session.counters().misses, session.counters().hits) == (2, 0)
