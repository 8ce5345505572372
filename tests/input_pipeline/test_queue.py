"""The bounded queue between two threads, and its three ends."""

from __future__ import annotations

import signal
import threading

import pytest

from input_pipeline import ClosableQueue, QueueClosed


def start(function):
    """Runs `function` on a thread; returns a function that joins it and returns what it did."""
    outcome = {}

    def run():
        try:
            outcome["returned"] = function()
        except BaseException as error:
            outcome["raised"] = error

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(timeout=10)
        assert not thread.is_alive()
        return outcome

    return join


def test_items_come_out_in_the_order_in_which_they_went_in():
    queue = ClosableQueue(2, "letters")

    def produce():
        for letter in "abcdefgh":
            queue.put(letter)
        queue.finish()

    join = start(produce)
    assert "".join(queue) == "abcdefgh"
    assert join() == {"returned": None}


def test_put_waits_until_there_is_room():
    queue = ClosableQueue(1, "numbers")
    queue.put(1)
    join = start(lambda: queue.put(2))
    assert queue.get() == 1
    assert queue.get() == 2
    assert join() == {"returned": None}


def test_a_finished_queue_gives_what_is_there_and_then_none_for_ever():
    queue = ClosableQueue(3, "numbers")
    queue.put(1)
    queue.put(2)
    queue.finish()
    assert [queue.get() for _ in range(4)] == [1, 2, None, None]


def test_finish_wakes_a_reader_that_waits():
    queue = ClosableQueue(1, "numbers")
    join = start(queue.get)
    queue.finish()
    assert join() == {"returned": None}


def test_close_wakes_a_reader_that_waits():
    queue = ClosableQueue(1, "numbers")
    join = start(queue.get)
    queue.close()
    assert isinstance(join()["raised"], QueueClosed)


def test_close_wakes_a_writer_that_waits():
    queue = ClosableQueue(1, "numbers")
    queue.put(1)
    join = start(lambda: queue.put(2))
    queue.close()
    assert isinstance(join()["raised"], QueueClosed)


def test_both_sides_raise_the_very_error_that_the_queue_was_closed_with():
    queue = ClosableQueue(1, "numbers")
    error = ValueError("bad record 17")
    queue.put(1)
    queue.close(error)
    for call in (queue.get, lambda: queue.put(2)):
        with pytest.raises(ValueError) as caught:
            call()
        assert caught.value is error


def test_close_drops_what_is_there():
    queue = ClosableQueue(2, "numbers")
    queue.put(1)
    queue.close()
    assert len(queue) == 0
    with pytest.raises(QueueClosed, match="numbers"):
        queue.get()


def test_close_wins_over_finish():
    queue = ClosableQueue(2, "numbers")
    queue.finish()
    queue.close()
    with pytest.raises(QueueClosed):
        queue.get()


def test_the_first_close_decides():
    queue = ClosableQueue(1, "numbers")
    queue.close()
    queue.close(ValueError("too late"))
    with pytest.raises(QueueClosed):
        queue.get()


def test_none_cannot_be_put():
    with pytest.raises(ValueError, match="numbers"):
        ClosableQueue(1, "numbers").put(None)


def test_put_after_finish_is_an_error_of_the_writer():
    queue = ClosableQueue(1, "numbers")
    queue.finish()
    with pytest.raises(RuntimeError, match="after finish"):
        queue.put(1)


def test_len_counts_the_items_that_wait():
    queue = ClosableQueue(3, "numbers")
    queue.put(1)
    queue.put(2)
    assert len(queue) == 2


def test_a_queue_without_room_is_refused():
    with pytest.raises(ValueError, match="maxsize=0"):
        ClosableQueue(0, "numbers")


def test_a_signal_reaches_the_main_thread_while_it_waits():
    queue = ClosableQueue(1, "numbers")

    class Stop(Exception):
        pass

    def stop(signum, frame):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(Stop):
            queue.get()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_may_close_the_queue_that_the_main_thread_waits_in():
    queue = ClosableQueue(1, "numbers")
    before = signal.signal(signal.SIGALRM, lambda signum, frame: queue.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(QueueClosed):
            queue.get()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_error_behind_the_last_item_comes_in_its_turn():
    queue, error = ClosableQueue(2), ValueError("bad record 17")
    queue.put(1)
    queue.finish(error)

    assert queue.get() == 1
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            queue.get()
        assert caught.value is error


def test_a_reader_that_abandons_a_queue_gets_none_and_the_writer_an_error():
    queue = ClosableQueue(2)
    queue.put(1)
    queue.abandon()

    assert queue.ready
    assert queue.get() is None
    with pytest.raises(QueueClosed, match="Nobody reads"):
        queue.put(2)


def test_abandoning_wakes_both_sides():
    full, empty = ClosableQueue(1), ClosableQueue(1)
    full.put(1)
    results = []

    def put():
        try:
            full.put(2)
        except QueueClosed:
            results.append("put")

    threads = [
        threading.Thread(target=put),
        threading.Thread(target=lambda: results.append(empty.get())),
    ]
    for thread in threads:
        thread.start()
    full.abandon()
    empty.abandon()
    for thread in threads:
        thread.join()

    assert sorted(map(str, results)) == ["None", "put"]
