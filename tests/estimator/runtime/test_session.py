from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from estimator.runtime import DeadlineExceededError, FeedError, Session, SessionClosedError

X = np.arange(3, dtype=np.float32)
MATRIX = np.ones((32, 32), np.float32)


def double(x):
    return 2 * x


def model(x):
    return {"loss": jnp.sum(x), "metrics": {"product": x @ x, "largest": jnp.max(x)}}


def test_run_compiles_once_and_computes_what_the_function_does(session):
    for offset in range(3):
        np.testing.assert_array_equal(session.run(double, (X + offset,)), 2 * (X + offset))
    counters = session.counters()
    assert (counters.programs, counters.misses, counters.hits) == (1, 1, 2)


def test_counters_know_runs_and_bytes(session):
    session.run(lambda x, y: (x, x + y), (X, {"a": X}["a"]))
    made = session.make_callable(double, (MATRIX,))
    made.run(MATRIX)
    made.release()
    counters = session.counters()
    assert counters.runs == 2
    assert counters.bytes_in == 2 * X.nbytes + MATRIX.nbytes
    assert counters.bytes_out == 2 * X.nbytes + MATRIX.nbytes


def test_a_fetched_subset_is_all_that_is_compiled(session):
    all_of_it = session.make_callable(model, (MATRIX,))
    loss = session.make_callable(model, (MATRIX,), fetches="loss")
    np.testing.assert_array_equal(loss.run(MATRIX), MATRIX.sum())
    product_flops = 2 * 32**3
    assert all_of_it.metadata().flops >= product_flops
    assert loss.metadata().flops < product_flops
    assert "maximum(" in all_of_it.metadata().hlo_text
    assert "maximum(" not in loss.metadata().hlo_text


def test_fetches_come_back_in_their_own_structure(session):
    outputs = session.run(model, (MATRIX,), {"a": "loss", "b": ["metrics/largest"]})
    assert jax.tree.map(float, outputs) == {"a": 1024.0, "b": [1.0]}


def test_a_fetch_that_does_not_exist_lists_the_outputs(session):
    with pytest.raises(ValueError, match=r"no output 'los'.*'metrics/largest'"):
        session.run(model, (MATRIX,), "los")
    assert session.counters().programs == 0


def test_feeds_must_be_a_tuple(session):
    with pytest.raises(TypeError, match=r"feeds must be a tuple.*\(x,\)"):
        session.run(double, X)
    with pytest.raises(TypeError, match="feeds must be a tuple"):
        session.make_callable(double, X)


def test_a_run_past_its_deadline_is_left(session, gate):
    session.make_callable(gate.running, (X,))
    with pytest.raises(DeadlineExceededError, match="running running"):
        session.run(gate.running, (X,), timeout_secs=0.02)
    gate.open()


def test_a_session_runs_on_the_first_of_its_devices():
    devices = jax.devices()[3:5]
    with Session(devices=devices) as session:
        assert session.run(double, (X,)).devices() == {devices[0]}
        assert session.run(double, (jax.device_put(X, devices[1]),)).devices() == {devices[1]}


def test_a_session_uses_no_other_devices():
    here, there = jax.devices()[3], jax.devices()[0]
    with Session(devices=[here]) as session:
        with pytest.raises(FeedError, match="feed 'x' of double lies on"):
            session.run(double, (jax.device_put(X, there),))
        with pytest.raises(ValueError, match="out_shardings of double name"):
            session.run(double, (X,), out_shardings=SingleDeviceSharding(there))


def test_two_open_sessions_of_one_name_and_version_are_refused():
    with Session("model", version=2):
        with pytest.raises(ValueError, match="A session 'model' version 2 is open"):
            Session("model", version=2)
        Session("model", version=3).close()
    Session("model", version=2).close()


def test_a_session_that_could_not_be_made_takes_no_name():
    with pytest.raises(ValueError):
        Session("model", operation_timeout_secs=-1)
    Session("model").close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name='' must be a string that is not empty"),
        ({"name": 3}, "name=3 must be a string"),
        ({"version": -1}, "version=-1 must be an int of at least 0"),
        ({"version": True}, "version=True must be an int"),
        ({"devices": []}, r"devices=\[\] is empty"),
        ({"operation_timeout_secs": 0}, "operation_timeout_secs=0 must be a positive number"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Session(**arguments)


def test_a_closed_session_refuses_everything_but_its_counters():
    session = Session("model")
    made = session.make_callable(double, (X,))
    made.run(X)
    session.close()
    session.close()
    for late in (
        lambda: session.run(double, (X,)),
        lambda: session.run_with_metadata(double, (X,)),
        lambda: session.make_callable(double, (X,)),
        lambda: session.program(double),
        lambda: made.run(X),
        lambda: made.run(X, timeout_secs=60),
        lambda: made.metadata(),
    ):
        with pytest.raises(SessionClosedError, match="session 'model' version 0 is closed"):
            late()
    made.release()
    assert (session.counters().programs, session.counters().runs) == (0, 1)


def test_closing_leaves_no_thread_behind(no_new_threads):
    with Session() as session:
        session.run(double, (X,), timeout_secs=60)


def test_what_runs_without_a_timeout_needs_no_thread(no_new_threads):
    session = Session()
    session.run(double, (X,))
    session.make_callable(double, (X,)).run(X)
    session.program(double)(X)


def test_random_keys_go_in_and_out(session):
    key = session.run(lambda key: jax.random.fold_in(key, 3), (jax.random.key(7),))
    assert key == jax.random.fold_in(jax.random.key(7), 3)
