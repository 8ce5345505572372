"""The thread that takes what leaves the devices: in order, bounded, and never in the way."""

from __future__ import annotations

import threading

import jax.numpy as jnp
import numpy as np
import pytest

from estimator.errors import Rendezvous
from estimator.outfeed import Outfeed

WAIT_SECS = 10  # only a test that fails waits for so long


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in set(threading.enumerate()) - before] == []


def test_everything_is_delivered_in_order_as_numpy_on_one_thread():
    seen, threads = [], set()

    def deliver(arrays, tag):
        threads.add(threading.current_thread().name)
        assert isinstance(arrays["a"], np.ndarray)
        seen.append((arrays["a"].tolist(), tag))

    with Rendezvous() as rendezvous:
        outfeed = Outfeed(rendezvous, "host", deliver)
        for i in range(20):
            outfeed.put({"a": jnp.arange(3) + i}, i)
        outfeed.drain()

    assert seen == [([i, i + 1, i + 2], i) for i in range(20)]
    assert threads == {"host"}


def test_a_slow_receiver_holds_the_sender_back():
    release, third_is_put = threading.Event(), threading.Event()
    delivered, put = [], []

    def deliver(arrays, tag):
        release.wait(WAIT_SECS)
        delivered.append(tag)

    with Rendezvous() as rendezvous:
        outfeed = Outfeed(rendezvous, "host", deliver)

        def sender():
            for i in range(10):
                outfeed.put((jnp.zeros(1),), i)
                put.append(i)
                if i == 2:
                    third_is_put.set()

        thread = rendezvous.spawn("sender", sender)
        third_is_put.wait(WAIT_SECS)
        # One is being delivered and two wait: there is no room for a fourth.
        assert delivered == []
        assert len(put) <= 3
        release.set()
        thread.join()
        outfeed.drain()

    assert delivered == list(range(10))


def test_an_error_of_the_receiver_reaches_the_sender_as_itself():
    error = ValueError("metric_fn")

    def deliver(arrays, tag):
        if tag == 1:
            raise error

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        outfeed = Outfeed(rendezvous, "host", deliver)
        for i in range(1000):
            outfeed.put((jnp.zeros(1),), i)
        raise AssertionError("The sender was not stopped.")

    assert caught.value is error


def test_an_error_of_the_last_delivery_is_not_lost():
    error = ValueError("metric_fn")

    def deliver(arrays, tag):
        raise error

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        outfeed = Outfeed(rendezvous, "host", deliver)
        outfeed.put((jnp.zeros(1),), 0)
        outfeed.drain()

    assert caught.value is error


def test_what_was_not_drained_is_dropped_when_the_run_fails():
    delivered = []

    with pytest.raises(KeyError), Rendezvous() as rendezvous:
        outfeed = Outfeed(rendezvous, "host", lambda arrays, tag: delivered.append(tag))
        outfeed.put((jnp.zeros(1),), 0)
        raise KeyError("body")

    assert delivered in ([], [0])
