from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from estimator.runtime import DeadlineExceededError, FeedError, Session, SessionClosedError

X = np.arange(3, dtype=np.float32)


def double(x):
    return 2 * x


def test_it_is_called_like_the_function(session):
    np.testing.assert_array_equal(session.program(double)(X), 2 * X)


def test_feeds_like_the_last_ones_are_not_looked_up(session):
    program = session.program(double)
    for _ in range(5):
        program(X)
    counters = session.counters()
    assert (counters.runs, counters.misses, counters.hits) == (5, 1, 0)


def test_feeds_of_another_kind_get_a_program_of_their_own_once(session, compilations):
    program = session.program(lambda tree: jax.tree.map(double, tree))
    feeds = [X, X[:2], X.astype(np.int32), {"a": X}]
    for feed in feeds:
        program(feed)
    before = compilations.count
    for feed in reversed(feeds):
        jax.tree.map(np.testing.assert_array_equal, program(feed), jax.tree.map(double, feed))
    assert compilations.count == before
    assert session.counters().programs == 4


def test_a_change_of_kind_is_looked_up_once(session):
    program = session.program(double)
    for feed in (X, X, X[:2], X[:2], X[:2], X, X):
        program(feed)
    counters = session.counters()
    assert (counters.runs, counters.misses, counters.hits) == (7, 2, 1)


def test_a_change_of_kind_does_not_keep_its_feeds_alive(session):
    program = session.program(double)
    program(X)
    feed = jnp.zeros((2, 2))
    gone = weakref.ref(feed)
    gc.disable()  # so that only a reference cycle keeps it
    try:
        program(feed)
        del feed
        assert gone() is None
    finally:
        gc.enable()


def test_feeds_on_other_devices_are_followed(session):
    program = session.program(double)
    for device in jax.devices()[:3]:
        assert program(jax.device_put(X, device)).devices() == {device}
    assert session.counters().misses == 3


def test_it_serves_a_training_loop_over_a_mesh(session):
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    stacked = NamedSharding(mesh, PartitionSpec(None, "data"))

    def loop(state, constants, batches, start, stop, step):
        def body(index, carry):
            return jax.tree.map(lambda w: w + batches["x"][index].sum(), carry)

        state = jax.lax.fori_loop(start, stop, body, state)
        return state, {"loss": state["w"].sum(), "step": step}

    program = session.program(loop, donate=0, out_shardings=(replicated, None))
    batches = {"x": jax.device_put(np.ones((5, 16), np.float32), stacked)}
    state = {"w": jax.device_put(np.zeros(4, np.float32), replicated)}
    first = state["w"]
    for before, (start, stop) in enumerate([(0, 5), (0, 5), (1, 3)]):
        state, outputs = program(
            state, (), batches, np.int32(start), np.int32(stop), np.int32(before)
        )
    assert first.is_deleted()
    assert state["w"].sharding.is_equivalent_to(replicated, 1)
    np.testing.assert_array_equal(state["w"], np.full(4, 12 * 16))  # 5 + 5 + 2 batches of 16 ones
    assert int(outputs["step"]) == 2
    assert session.counters().misses == 1


def test_programs_of_equal_options_share_what_is_compiled(session):
    session.program(double, donate=0)(jnp.array(X))
    session.program(double, donate=0)(jnp.array(X))
    assert (session.counters().misses, session.counters().hits) == (1, 1)


def test_what_was_made_a_callable_is_not_compiled_again(session):
    program = session.program(double)
    made = program.make_callable(jax.ShapeDtypeStruct((3,), np.float32))
    np.testing.assert_array_equal(program(X), made.run(X))
    assert session.counters().misses == 1


def test_a_feed_that_is_no_array_is_named(session):
    program = session.program(double)
    for _ in range(2):
        with pytest.raises(FeedError, match="feed 'x' of double is 'three'"):
            program("three")
        program(X)


def test_an_error_of_the_function_reaches_the_caller_as_itself(session):
    error = ValueError("of the function")

    def fail(x):
        raise error

    program = session.program(fail)
    with pytest.raises(ValueError) as raised:
        program(X)
    assert raised.value is error


def test_an_error_of_the_function_for_feeds_of_another_kind_comes_alone(session):
    program = session.program(double)
    program(X)
    with pytest.raises(TypeError, match="unsupported operand") as raised:
        program({"a": X})
    assert raised.value.__context__ is None


def test_a_donated_feed_that_is_gone_is_no_reason_to_compile(session):
    program = session.program(double, donate=0)
    state = jnp.array(X)
    program(state)
    with pytest.raises(Exception, match="deleted"):
        program(state)
    assert session.counters().misses == 1


def test_it_obeys_the_timeout_of_the_session(gate):
    with Session(operation_timeout_secs=0.02) as session:
        program = session.program(gate.running)
        program.make_callable(X)
        with pytest.raises(DeadlineExceededError, match="running running"):
            program(X)
        gate.open()


def test_a_closed_session_runs_no_program():
    session = Session()
    program, unused = session.program(double), session.program(double)
    program(X)
    session.close()
    for late in (program, unused):
        with pytest.raises(SessionClosedError):
            late(X)
