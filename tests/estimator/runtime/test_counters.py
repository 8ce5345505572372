from __future__ import annotations

import dataclasses
import threading

import pytest

from estimator.runtime.counters import Tally


def test_runs_and_bytes_add_up_over_programs():
    tally = Tally()
    small, large = tally.meter(bytes_in=10, bytes_out=1), tally.meter(bytes_in=100, bytes_out=2)
    small.ran()
    small.ran()
    large.ran()
    counters = tally.snapshot(programs=2)
    assert (counters.runs, counters.bytes_in, counters.bytes_out) == (3, 120, 4)


def test_reading_does_not_count():
    tally = Tally()
    meter = tally.meter(bytes_in=1, bytes_out=1)
    meter.ran()
    assert [tally.snapshot(1).runs for _ in range(3)] == [1, 1, 1]
    meter.ran()
    assert tally.snapshot(1).runs == 2


def test_no_run_of_any_thread_is_lost():
    tally = Tally()
    meter = tally.meter(bytes_in=1, bytes_out=1)

    def run_often():
        for _ in range(1000):
            meter.ran()
            tally.snapshot(1)

    threads = [threading.Thread(target=run_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.snapshot(1).runs == 4000


def test_a_snapshot_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tally().snapshot(0).runs = 1  # pyright: ignore[reportAttributeAccessIssue]
