import dataclasses
import gzip
import json
import logging

import jax
import pytest

from hooks import Hook, ProfilerHook


@pytest.fixture
def traces(monkeypatch):
    """Records the calls of the profiler in place of making them."""
    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda to, **_: calls.append(("start", to)))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append(("stop",)))
    return calls


class Steps(Hook):
    """Notes the loops among the calls of the profiler."""

    def __init__(self, calls):
        self.calls = calls

    def before_loop(self, step):
        self.calls.append(step)


@pytest.mark.parametrize("loop_steps", [1, 3, 10, 100])
def test_the_trace_covers_exactly_the_window(traces, run_loops, loop_steps):
    # Steps comes second: it notes a loop after the profiler had its chance to start.
    hooks = [ProfilerHook(10, 5, "to"), Steps(traces)]
    loops = run_loops(hooks, last_step=40, loop_steps=loop_steps)
    start, stop = traces.index(("start", "to")), traces.index(("stop",))
    traced = [loop for loop in loops if loop[0] in traces[start:stop]]
    assert (traced[0][0], traced[-1][1]) == (10, 15)
    assert len(traces) == len(loops) + 2


def test_the_device_is_awaited_at_both_edges_and_nowhere_else(traces, run_loops, make_view):
    run_loops([ProfilerHook(10, 5, "to")], last_step=40, loop_steps=10)
    assert make_view.reads == [("losses", 10), ("losses", 15)]


def test_the_trace_stops_only_when_the_device_has_finished(traces, make_view):
    losses = make_view(0, 5).losses

    def read_losses():
        traces.append("device done")
        return losses

    hook = ProfilerHook(0, 5, "to")
    hook.before_loop(0)
    hook.after_loop(dataclasses.replace(make_view(0, 5), read_losses=read_losses))
    assert traces == [("start", "to"), "device done", ("stop",)]


def test_a_window_at_the_start_of_the_run_is_traced(traces, run_loops):
    run_loops([ProfilerHook(0, 5, "to")], last_step=40, loop_steps=10)
    assert traces == [("start", "to"), ("stop",)]


def test_a_run_that_ends_inside_the_window_closes_the_trace(traces, run_loops, make_view):
    run_loops([ProfilerHook(2, 50, "to")], last_step=10, loop_steps=5)
    assert traces == [("start", "to"), ("stop",)]
    assert make_view.reads == [("losses", 2), ("losses", 10)]


def test_it_asks_for_the_edges_of_the_window_and_for_nothing_after():
    hook = ProfilerHook(10, 5, "to")
    assert [hook.next_step(step) for step in (0, 9, 10, 14, 15, 16)] == [10, 10, 15, 15, None, None]


def test_the_log_says_where_the_trace_is(traces, run_loops, caplog):
    with caplog.at_level(logging.INFO, "hooks.profile"):
        run_loops([ProfilerHook(0, 5, "to")], last_step=10, loop_steps=5)
    assert [record.getMessage() for record in caplog.records] == ["Profile written to to"]


def test_a_run_that_fails_inside_the_window_closes_the_trace(traces):
    hook = ProfilerHook(0, 50, "to")
    hook.before_loop(0)
    hook.on_error(ValueError())
    assert traces == [("start", "to"), ("stop",)]


@pytest.mark.parametrize("start", [11, 12, 20])
def test_a_run_that_starts_later_is_neither_traced_nor_cut(traces, run_loops, caplog, start):
    with caplog.at_level(logging.INFO, "hooks.profile"):
        loops = run_loops([ProfilerHook(10, 5, "to")], start=start, last_step=40, loop_steps=100)
    assert traces == []
    assert loops == [(start, 40)]
    assert f"No profile: the run starts at step {start}" in caplog.text


@pytest.mark.parametrize(
    ("start_step", "num_steps", "name"), [(-1, 5, "start_step"), (0, 0, "num_steps")]
)
def test_an_impossible_window_is_refused(start_step, num_steps, name):
    with pytest.raises(ValueError, match=name):
        ProfilerHook(start_step, num_steps, "to")


def test_what_the_profiler_writes_for_tensorboard_and_perfetto_holds_the_window_alone(
    tmp_path, run_loops
):
    class Annotate(Hook):
        def before_loop(self, step):
            with jax.profiler.TraceAnnotation(f"loop-from-{step}-on"):
                pass

    hooks = [ProfilerHook(2, 2, tmp_path), Annotate()]
    run_loops(hooks, last_step=6, loop_steps=2)
    (trace,) = tmp_path.rglob("*.xplane.pb")
    seen = trace.read_bytes()
    assert [f"loop-from-{step}-on".encode() in seen for step in (0, 2, 4)] == [False, True, False]
    # TensorBoard looks for plugins/profile/<run>/<host>.xplane.pb.
    assert trace.relative_to(tmp_path).parts[:2] == ("plugins", "profile")
    with gzip.open(trace.parent / "perfetto_trace.json.gz") as file:
        perfetto = json.load(file)
    names = {event.get("name") for event in perfetto["traceEvents"]}
    assert {name for name in names if str(name).startswith("loop-")} == {"loop-from-2-on"}
    # Its reader takes these two alone.
    assert perfetto.keys() == {"traceEvents", "displayTimeUnit"}
