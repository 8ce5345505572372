from __future__ import annotations

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from estimator.runtime import (
    CancelledError,
    DeadlineExceededError,
    FeedError,
    ReleasedError,
    Session,
    SessionClosedError,
)

X = np.arange(3, dtype=np.float32)


def add(x, y):
    return {"sum": x + y["a"], "twice": 2 * y["a"]}


def double(x):
    return 2 * x


def test_it_computes_what_the_function_does(session):
    outputs = session.make_callable(add, (X, {"a": X})).run(X, {"a": X + 1})
    np.testing.assert_array_equal(outputs["sum"], X + X + 1)
    np.testing.assert_array_equal(outputs["twice"], 2 * (X + 1))


def test_it_is_compiled_before_it_is_run(session, compilations):
    array = jnp.array(X)
    before = compilations.count
    made = session.make_callable(lambda x: 3 * x, (jax.ShapeDtypeStruct((3,), np.float32),))
    assert compilations.count == before + 1
    np.testing.assert_array_equal(made.run(X), 3 * X)
    np.testing.assert_array_equal(made.run(array), 3 * X)
    assert compilations.count == before + 1


@pytest.mark.parametrize("timeout_secs", [None, 60])
@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ((X,), r"add takes 2 feeds \(x, y\), got 1"),
        ((X, {"a": X}, X), r"add takes 2 feeds \(x, y\), got 3"),
        ((X, {"b": X}), "missing 'y/a'; unexpected 'y/b'"),
        ((X, {"a": X[:2]}), r"feed 'y/a' is float32\[2\], expected float32\[3\]"),
        ((X, {"a": X.astype(np.int32)}), r"feed 'y/a' is int32\[3\], expected float32\[3\]"),
        ((X, {"a": "three"}), "feed 'y/a' of add is 'three' of <class 'str'>"),
    ],
    ids=["too few", "too many", "structure", "shape", "dtype", "no array"],
)
def test_feeds_that_do_not_fit_are_named(session, feeds, message, timeout_secs):
    made = session.make_callable(add, (X, {"a": X}))
    with pytest.raises(FeedError, match=message):
        made.run(*feeds, timeout_secs=timeout_secs)
    assert session.counters().runs == 0


def test_a_feed_on_another_device_is_named(session):
    made = session.make_callable(add, (X, {"a": X}))
    with pytest.raises(FeedError, match="feed 'y/a' lies on"):
        made.run(X, {"a": jax.device_put(X, jax.devices()[1])})


def test_a_refused_run_donates_nothing(session):
    made = session.make_callable(add, (X, {"a": X}), donate=0)
    state = jnp.asarray(X)
    with pytest.raises(FeedError):
        made.run(state, {"a": X[:2]})
    assert not state.is_deleted()


def test_donated_feeds_give_their_memory(session):
    made = session.make_callable(double, (X,), donate=0)
    state = jnp.array(X)
    np.testing.assert_array_equal(made.run(state), 2 * X)
    assert state.is_deleted()


def test_outputs_lie_where_out_shardings_says(session):
    sharding = NamedSharding(Mesh(np.asarray(jax.devices()), ("data",)), PartitionSpec("data"))
    feed = jax.device_put(np.ones((8, 2), np.float32), sharding)
    made = session.make_callable(lambda x: (x.sum(0), x), (feed,), out_shardings=(None, sharding))
    total, same = made.run(feed)
    np.testing.assert_array_equal(total, [8, 8])
    assert same.sharding.is_equivalent_to(sharding, 2)


def test_an_error_that_is_not_about_feeds_stays_itself(session):
    made = session.make_callable(double, (X,), donate=0)
    state = jnp.array(X)
    made.run(state)
    with pytest.raises(Exception, match="deleted") as raised:
        made.run(state)
    assert not isinstance(raised.value, FeedError)


def test_a_released_one_says_so(session):
    made = session.make_callable(double, (X,))
    made.release()
    made.release()
    with pytest.raises(ReleasedError, match="callable of double was released"):
        made.run(X)
    with pytest.raises(ReleasedError):
        made.run(X, timeout_secs=60)
    with pytest.raises(ReleasedError):
        made.metadata()


def test_releasing_the_last_one_frees_the_program(session):
    one, other = (session.make_callable(double, (X,)) for _ in range(2))
    program = weakref.ref(one._start.__self__)
    one.release()
    np.testing.assert_array_equal(other.run(X), 2 * X)
    assert session.counters().programs == 1
    other.release()
    gc.collect()
    assert session.counters().programs == 0
    assert program() is None


def test_releasing_leaves_a_program_that_run_uses(session):
    made = session.make_callable(double, (X,))
    session.run(double, (X,))
    made.release()
    session.run(double, (X,))
    assert session.counters().misses == 1


def test_a_run_in_time_returns_finished_outputs(session):
    made = session.make_callable(double, (X,))
    outputs = made.run(X, timeout_secs=60)
    assert outputs.is_ready()
    np.testing.assert_array_equal(outputs, 2 * X)


def test_a_run_that_takes_too_long_is_left_at_its_deadline(session, gate):
    made = session.make_callable(gate.running, (X,))
    with pytest.raises(DeadlineExceededError, match="running running"):
        made.run(X, timeout_secs=0.02)
    gate.open()
    np.testing.assert_array_equal(made.run(X, timeout_secs=60), X + 1)


def test_the_timeout_of_the_session_holds_for_runs_without_their_own(gate):
    with Session(operation_timeout_secs=0.02) as session:
        made = session.make_callable(gate.running, (X,))
        with pytest.raises(DeadlineExceededError, match=r"timeout_secs=0\.02"):
            made.run(X)
        gate.open()
        np.testing.assert_array_equal(made.run(X, timeout_secs=60), X + 1)


def test_a_wrong_timeout_is_refused(session):
    made = session.make_callable(double, (X,))
    with pytest.raises(ValueError, match="timeout_secs=0 must be a positive number"):
        made.run(X, timeout_secs=0)


def test_closing_the_session_cancels_a_run_that_waits(gate, call):
    session = Session()
    made = session.make_callable(gate.running, (X,))
    run = call(lambda: made.run(X, timeout_secs=float("inf")))
    gate.await_reached()
    closing = call(session.close)
    with pytest.raises(CancelledError, match="session was closed before this was finished"):
        run.result()
    gate.open()
    closing.result()
    with pytest.raises(SessionClosedError, match="session is closed"):
        made.run(X)


def test_many_threads_may_run_it_at_once(session, call):
    made = session.make_callable(double, (X,))
    start = threading.Barrier(4)

    def run_often(offset):
        start.wait(60)
        return [np.asarray(made.run(X + offset + i)) for i in range(50)]

    callers = [call(lambda offset=offset: run_often(offset)) for offset in (0, 100, 200, 300)]
    for offset, caller in zip((0, 100, 200, 300), callers, strict=True):
        for i, outputs in enumerate(caller.result()):
            np.testing.assert_array_equal(outputs, 2 * (X + offset + i))
    assert session.counters().runs == 200
