import logging

import jax
import pytest

from hooks import EverySteps, MemoryHook

GIB = 2**30


class FakeDevice:
    def __init__(self, **statistics):
        self.statistics = statistics

    def memory_stats(self):
        return self.statistics or None


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "hooks.memory")
    return lambda: [record.getMessage() for record in caplog.records]


def test_the_fullest_device_is_reported_when_due(make_view, writer, lines):
    devices = [
        FakeDevice(bytes_in_use=1 * GIB, peak_bytes_in_use=4 * GIB, bytes_limit=16 * GIB),
        FakeDevice(bytes_in_use=2 * GIB, peak_bytes_in_use=3 * GIB, bytes_limit=16 * GIB),
    ]
    hook = MemoryHook(EverySteps(10), writer, devices)
    hook.after_loop(make_view(0, 9))
    assert writer.scalars == []
    hook.after_loop(make_view(9, 12))
    assert writer.scalars == [
        ("memory/bytes_in_use", 12, 2 * GIB),
        ("memory/peak_bytes_in_use", 12, 4 * GIB),
        ("memory/bytes_limit", 12, 16 * GIB),
    ]
    assert lines() == [
        "step 12: device memory: bytes_in_use = 2.000 GiB, peak_bytes_in_use = 4.000 GiB, "
        "bytes_limit = 16.000 GiB"
    ]
    assert make_view.reads == []


def test_it_logs_without_a_writer_what_the_backend_counts(make_view, lines):
    hook = MemoryHook(EverySteps(1), devices=[FakeDevice(bytes_in_use=GIB // 2, num_allocs=3)])
    hook.after_loop(make_view(0, 1))
    assert lines() == ["step 1: device memory: bytes_in_use = 0.500 GiB"]


def test_devices_that_do_not_count_are_told_of_once(make_view, writer, lines):
    assert jax.local_devices()[0].memory_stats() is None, "the CPU counts now: use a fake"
    hook = MemoryHook(EverySteps(1), writer)
    for step in range(5):
        hook.after_loop(make_view(step, step + 1))
    assert lines() == ["These devices do not say how much of their memory is in use."]
    assert writer.scalars == []


def test_another_process_than_the_chief_is_silent(make_view, make_context, writer, lines):
    hook = MemoryHook(EverySteps(1), writer, [FakeDevice(bytes_in_use=GIB)])
    hook.begin(make_context(is_chief=False))
    hook.after_loop(make_view(0, 1))
    assert (lines(), writer.scalars) == ([], [])
