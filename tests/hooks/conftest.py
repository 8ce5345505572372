"""What hooks are shown and what they call, in fakes that remember."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hooks import HookContext, HookSequence, LoopView


class ViewMaker:
    """Makes LoopViews, and records which lazy values were read, as `("losses", step)`."""

    def __init__(self):
        self.reads = []

    def __call__(
        self,
        before,
        step,
        *,
        losses=None,
        metrics=None,
        elapsed_secs=1.0,
        input_wait_secs=0.0,
        examples=None,
        mode="train",
        state="the state",
        histograms=None,
    ):
        if losses is None:
            losses = [1.0] * (step - before)

        def reader(name, value):
            def read():
                self.reads.append((name, step))
                return value

            return read

        return LoopView(
            mode=mode,
            model_dir=Path("model"),
            before=before,
            step=step,
            elapsed_secs=elapsed_secs,
            input_wait_secs=input_wait_secs,
            examples=8 * (step - before) if examples is None else examples,
            input_position=None,
            read_losses=reader("losses", np.asarray(losses, np.float32)),
            read_metrics=reader(
                "metrics", {name: np.asarray(values) for name, values in (metrics or {}).items()}
            ),
            read_state=reader("state", state),
            read_histograms=reader("histograms", histograms or {}),
        )


class FakeWriter:
    """Remembers the scalars and texts it is given."""

    def __init__(self):
        self.scalars = []
        self.texts = []
        self.flushes = 0

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.scalars.append((tag, global_step, scalar_value))

    def add_text(self, tag, text_string, global_step=None):
        self.texts.append((tag, global_step, text_string))

    def flush(self):
        self.flushes += 1


class FakeSaver:
    """Remembers what it saved; saves no step twice; waits as it is told to."""

    def __init__(self):
        self.saved = []
        self.waits = 0
        self.wait_error = None

    def save(self, view):
        if view.step in self.saved:
            return None
        self.saved.append(view.step)
        return Path(f"model/{view.step}")

    def wait(self):
        self.waits += 1
        if self.wait_error is not None:
            raise self.wait_error


class FakeClock:
    """Stands still until it is told to go on."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def advance(self, secs):
        self.now += secs


@pytest.fixture
def make_view():
    return ViewMaker()


@pytest.fixture
def writer():
    return FakeWriter()


@pytest.fixture
def saver():
    return FakeSaver()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def make_context():
    def make(step=0, last_step=None, mode="train", is_chief=True):
        return HookContext(
            mode=mode,
            model_dir=Path("model"),
            step=step,
            last_step=last_step,
            batch_size=8,
            is_chief=is_chief,
        )

    return make


@pytest.fixture
def run_loops(make_view, make_context):
    """Runs hooks as an estimator does: loops of `loop_steps`, cut where a hook asks.

    Returns `(before, step)` of each loop.
    """

    def run(hooks, *, start=0, last_step, loop_steps, losses=lambda step: 1.0):
        step, stop, loops = start, False, []
        view = make_view(start, start)
        with HookSequence(hooks) as sequence:
            sequence.begin(make_context(step=start, last_step=last_step))
            while step < last_step and not stop:
                end = sequence.loop_end(step, min(step + loop_steps, last_step))
                sequence.before_loop(step)
                view = make_view(step, end, losses=[losses(at) for at in range(step + 1, end + 1)])
                loops.append((step, end))
                step = end
                stop = sequence.after_loop(view)
            sequence.end(view)
        return loops

    return run
