"""Work ahead of its use, on threads."""

from __future__ import annotations

import threading

import pytest

from input_pipeline import QueueClosed
from input_pipeline.ahead import Ahead


@pytest.fixture
def ahead():
    ahead = Ahead(threads=2, size=3)
    yield ahead
    ahead.close()


def test_results_come_in_the_order_of_the_items(ahead):
    first_may_end = threading.Event()

    def work(item):
        if item == 0:
            first_may_end.wait(timeout=10)
        else:
            first_may_end.set()
        return item * item

    assert list(ahead.map(work, iter(range(8)))) == [n * n for n in range(8)]


def test_an_error_is_raised_after_the_results_before_it(ahead):
    error = ValueError("bad record 2")

    def work(item):
        if item == 2:
            raise error
        return item

    results = ahead.map(work, iter(range(8)))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError) as caught:
        next(results)
    assert caught.value is error


def test_an_error_of_the_items_is_raised_after_the_results_before_it(ahead):
    error = ValueError("bad record 2")

    def items():
        yield from (0, 1)
        raise error

    results = ahead.map(lambda item: item, items())
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError) as caught:
        next(results)
    assert caught.value is error


def test_no_more_is_taken_ahead_than_the_size(ahead):
    taken = []

    def items():
        for item in range(100):
            taken.append(item)
            yield item

    results = ahead.map(lambda item: item, items())
    assert next(results) == 0
    assert taken == [0, 1, 2, 3]


def test_leaving_early_drops_what_waits():
    ahead = Ahead(threads=1, size=5)
    running, may_end, done = threading.Event(), threading.Event(), []

    def work(item):
        if item == 1:
            running.set()
            may_end.wait(timeout=10)
        done.append(item)
        return item

    results = ahead.map(work, iter(range(6)))
    assert next(results) == 0
    assert running.wait(10)
    results.close()  # type: ignore[attr-defined]
    may_end.set()
    assert list(ahead.map(work, iter([9]))) == [9]
    ahead.close()
    assert done == [0, 1, 9]


def test_closing_wakes_who_waits_and_leaves_behind_what_does_not_come_back(monkeypatch, caplog):
    monkeypatch.setattr("input_pipeline.ahead._JOIN_SECS", 0.01)
    ahead = Ahead(threads=1, size=1)
    running, may_end, woken = threading.Event(), threading.Event(), []

    def stuck(item):
        running.set()
        may_end.wait(timeout=60)

    def read():
        try:
            next(ahead.map(stuck, iter(range(8))))
        except QueueClosed:
            woken.append(True)

    reader = threading.Thread(target=read)
    reader.start()
    assert running.wait(10)
    ahead.close()
    reader.join()
    may_end.set()

    assert woken == [True]
    assert "left behind" in caplog.text
    with pytest.raises(QueueClosed):
        next(ahead.map(stuck, iter([0])))
