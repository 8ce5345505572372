import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hooks import Hook, HookContext, HookSequence


class Recorder(Hook):
    """Notes each call in a list that several share, and fails or answers as told."""

    def __init__(self, name, calls, fails=(), stops=None, wants=None):
        self.name = name
        self.calls = calls
        self.fails = fails
        self.stops = stops
        self.wants = wants

    def note(self, method):
        self.calls.append(f"{self.name}.{method}")
        if method in self.fails:
            raise ValueError(f"{self.name} failed in {method}")

    def begin(self, context):
        self.note("begin")

    def next_step(self, step):
        return self.wants

    def before_loop(self, step):
        self.note("before_loop")

    def after_loop(self, view):
        self.note("after_loop")
        return self.stops

    def end(self, view):
        self.note("end")

    def on_error(self, error):
        self.note("on_error")


METHODS = ["begin", "before_loop", "after_loop", "end"]


def test_every_method_is_called_in_the_order_of_the_hooks(run_loops):
    calls = []
    run_loops([Recorder("a", calls), Recorder("b", calls)], last_step=5, loop_steps=5)
    assert calls == [f"{name}.{method}" for method in METHODS for name in "ab"]


@pytest.mark.parametrize("method", METHODS)
def test_an_error_of_a_hook_reaches_the_caller_as_itself_and_every_begun_hook(run_loops, method):
    calls = []
    hooks = [Recorder("a", calls), Recorder("b", calls, fails={method}), Recorder("c", calls)]
    with pytest.raises(ValueError, match=f"b failed in {method}") as caught:
        run_loops(hooks, last_step=5, loop_steps=5)
    assert not hasattr(caught.value, "__notes__")
    heard = [call[0] for call in calls if call.endswith("on_error")]
    # A hook whose begin was not reached has nothing to put in order.
    assert heard == (["a", "b"] if method == "begin" else ["a", "b", "c"])


def test_hooks_hear_the_very_error_that_ended_the_run():
    heard = []

    class Listener(Hook):
        def on_error(self, error):
            heard.append(error)

    error = RuntimeError("bad record")
    with pytest.raises(RuntimeError), HookSequence([Listener()]) as sequence:
        sequence.begin(
            HookContext(mode="train", model_dir=Path(), step=0, last_step=None, batch_size=1)
        )
        raise error
    assert heard == [error]


def test_an_error_while_handling_one_is_a_note_and_keeps_no_hook_from_hearing(run_loops):
    calls = []
    hooks = [
        Recorder("a", calls, fails={"after_loop", "on_error"}),
        Recorder("b", calls, fails={"on_error"}),
    ]
    with pytest.raises(ValueError, match="a failed in after_loop") as caught:
        run_loops(hooks, last_step=5, loop_steps=5)
    assert calls[-2:] == ["a.on_error", "b.on_error"]
    assert caught.value.__notes__ == [
        f"Recorder.on_error failed too: ValueError: {name} failed in on_error" for name in "ab"
    ]


def test_no_hook_hears_of_an_error_when_there_was_none(run_loops):
    calls = []
    run_loops([Recorder("a", calls)], last_step=5, loop_steps=5)
    assert "a.on_error" not in calls


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [([None, None], 20), ([15, None], 15), ([15, 13], 13), ([25, 20], 20), ([10, 3], 20)],
)
def test_a_loop_ends_at_the_first_step_that_a_hook_wants_and_that_lies_ahead(wanted, expected):
    hooks = [Recorder("a", [], wants=step) for step in wanted]
    assert HookSequence(hooks).loop_end(10, at_most=20) == expected


def test_one_reason_stops_the_run_but_all_hooks_see_the_loop(make_view, caplog):
    calls = []
    hooks = [Recorder("a", calls, stops="a has had enough."), Recorder("b", calls)]
    with caplog.at_level(logging.INFO):
        assert HookSequence(hooks).after_loop(make_view(0, 5))
    assert calls == ["a.after_loop", "b.after_loop"]
    assert [record.getMessage() for record in caplog.records] == [
        "Stop at step 5: a has had enough."
    ]


def test_without_a_reason_the_run_goes_on(make_view):
    assert not HookSequence([Recorder("a", [])]).after_loop(make_view(0, 5))


def test_a_numpy_integer_is_a_step():
    hook = LambdaStep(np.int64(7))
    end = HookSequence([hook]).loop_end(0, 10)
    assert end == 7
    assert type(end) is int


@pytest.mark.parametrize("wanted", [3.5, "a", True])
def test_a_next_step_that_is_no_step_names_the_hook(wanted):
    with pytest.raises(TypeError, match=r"LambdaStep\.next_step returned"):
        HookSequence([LambdaStep(wanted)]).loop_end(0, 10)


@pytest.mark.parametrize("reason", [True, 1, ""])
@pytest.mark.parametrize("method", ["begin", "before_loop", "after_loop"])
def test_a_reason_that_is_no_text_names_the_hook_and_the_method(method, reason):
    class Hooked(Hook):
        pass

    setattr(Hooked, method, lambda self, argument: reason)
    view = SimpleNamespace(step=3)
    argument = 3 if method == "before_loop" else view
    with pytest.raises(TypeError, match=rf"Hooked\.{method} returned {reason!r}"):
        getattr(HookSequence([Hooked()]), method)(argument)


class LambdaStep(Hook):
    def __init__(self, wanted):
        self.wanted = wanted

    def next_step(self, step):
        return self.wanted
