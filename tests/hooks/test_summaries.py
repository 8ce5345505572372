import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hooks import EventWriter, EverySecs, EverySteps, Histogram, SummaryHook
from tests.events import scalars_in, values_in

# Of the numbers -3 and 4.
TWO = Histogram(
    counts=np.array([1.0, 1.0]), minimum=-3.0, maximum=4.0, total=1.0, squares=25.0, non_finite=0
)


class RawWriter:
    """Remembers scalars and histograms."""

    def __init__(self):
        self.scalars, self.histograms = [], []

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.scalars.append((tag, global_step, scalar_value))

    def flush(self):
        pass

    def add_histogram_raw(self, tag, *, global_step, **values):
        self.histograms.append((tag, global_step))


def test_each_due_step_is_written_with_its_own_number_and_values(make_view, writer):
    hook = SummaryHook(writer, EverySteps(3))
    hook.after_loop(
        make_view(
            4, 10, losses=[5, 6, 7, 8, 9, 10], metrics={"accuracy": [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]}
        )
    )
    hook.end(make_view(10, 10))
    assert sorted(writer.scalars) == [
        ("accuracy", 6, 0.6),
        ("accuracy", 9, 0.9),
        ("loss", 6, 6.0),
        ("loss", 9, 9.0),
    ]


# The fixture only makes views; it may be shared by the examples.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(every=st.integers(1, 12), start=st.integers(0, 20), lengths=st.lists(st.integers(1, 15)))
def test_what_is_written_does_not_depend_on_how_the_run_was_cut(make_view, every, start, lengths):
    written = []

    class Writer:
        def add_scalar(self, tag, scalar_value, global_step=None):
            written.append((tag, global_step, scalar_value))

        def flush(self):
            pass

    hook, step = SummaryHook(Writer(), EverySteps(every)), start
    for length in lengths:
        losses = range(step + 1, step + length + 1)
        hook.after_loop(make_view(step, step + length, losses=losses))
        step += length
    hook.end(make_view(step, step))
    assert written == [
        ("loss", at, float(at)) for at in range(start + 1, step + 1) if at % every == 0
    ]


def test_a_loop_without_a_due_step_is_not_read(make_view, writer):
    hook = SummaryHook(writer, EverySteps(100))
    hook.after_loop(make_view(0, 50))
    hook.after_loop(make_view(50, 99))
    assert make_view.reads == []
    assert writer.scalars == []


def test_a_period_in_seconds_writes_the_last_step_of_the_due_loop(make_view, writer, clock):
    hook = SummaryHook(writer, EverySecs(60, clock))
    hook.after_loop(make_view(0, 3, losses=[1, 2, 3]))
    assert make_view.reads == []
    clock.advance(60)
    hook.after_loop(make_view(3, 6, losses=[4, 5, 6]))
    hook.end(make_view(6, 6))
    assert writer.scalars == [("loss", 6, 6.0)]


def test_a_loop_is_read_only_when_the_next_one_is_under_way(make_view, writer):
    hook = SummaryHook(writer, EverySteps(2))
    hook.after_loop(make_view(0, 2, losses=[1, 2]))
    assert make_view.reads == []
    hook.after_loop(make_view(2, 3, losses=[3]))
    assert writer.scalars == [("loss", 2, 2.0)]


def test_an_error_does_not_swallow_what_was_due(make_view, writer):
    hook = SummaryHook(writer, EverySteps(2))
    hook.after_loop(make_view(0, 2, losses=[1, 2]))
    hook.on_error(RuntimeError())
    assert writer.scalars == [("loss", 2, 2.0)]


def test_loops_are_not_cut_for_summaries(run_loops, writer):
    assert run_loops([SummaryHook(writer, EverySteps(3))], last_step=10, loop_steps=10) == [(0, 10)]


@pytest.mark.parametrize("fails", [False, True])
def test_the_writer_is_flushed_however_the_run_ends(make_view, writer, fails):
    hook = SummaryHook(writer, EverySteps(10))
    if fails:
        hook.on_error(ValueError())
    else:
        hook.end(make_view(0, 10))
    assert writer.flushes == 1


def test_another_process_than_the_chief_neither_writes_nor_reads(make_view, make_context, writer):
    hook = SummaryHook(writer, EverySteps(1))
    hook.begin(make_context(is_chief=False))
    hook.after_loop(make_view(0, 5))
    hook.end(make_view(0, 5))
    assert (writer.scalars, writer.flushes, make_view.reads) == ([], 0, [])


def test_tensorboard_reads_back_what_was_written(make_view, tmp_path):
    tensorboardX = pytest.importorskip("tensorboardX")

    with tensorboardX.SummaryWriter(str(tmp_path)) as writer:
        hook = SummaryHook(writer, EverySteps(2))
        hook.after_loop(make_view(0, 4, losses=[1, 2, 3, 4], histograms={4: {"gradients/w": TWO}}))
        hook.end(make_view(4, 4))
    assert scalars_in(tmp_path) == {
        ("loss", 2): 2.0,
        ("loss", 4): 4.0,
        ("norm/gradients", 4): 5.0,
    }


@pytest.mark.parametrize("own", [True, False], ids=["EventWriter", "tensorboardX"])
def test_tensorboard_reads_histograms_back(make_view, tmp_path, own):
    if own:
        writer = EventWriter(tmp_path)
    else:
        writer = pytest.importorskip("tensorboardX").SummaryWriter(str(tmp_path))
    hook = SummaryHook(writer, None)
    hook.after_loop(make_view(0, 4, histograms={4: {"gradients/w": TWO}}))
    hook.end(make_view(4, 4))
    writer.close()
    [(step, histo)] = [(step, v.histo) for step, v in values_in(tmp_path) if v.tag == "gradients/w"]
    assert (step, histo.min, histo.max, histo.num, histo.sum, histo.sum_squares) == (
        (4, -3.0, 4.0, 2, 1.0, 25.0)
    )
    assert list(histo.bucket) == [1, 1]
    assert list(histo.bucket_limit) == [0.5, 4.0]


def test_histograms_come_one_loop_late_with_the_norm_over_all_of_a_kind(make_view):
    writer = RawWriter()
    hook = SummaryHook(writer, EverySteps(100))
    one = {"gradients/a": TWO, "gradients/b": TWO, "parameters/a": TWO}
    hook.after_loop(make_view(0, 10, histograms={5: one}))
    assert writer.histograms == []
    hook.after_loop(make_view(10, 20))
    assert writer.histograms == [(name, 5) for name in one]
    assert writer.scalars == [
        ("norm/gradients", 5, pytest.approx(50**0.5)),
        ("norm/parameters", 5, 5.0),
    ]


def test_a_writer_of_scalars_alone_is_given_no_histograms(make_view, writer):
    hook = SummaryHook(writer, None)
    hook.after_loop(make_view(0, 10, histograms={5: {"gradients/a": TWO}}))
    hook.end(make_view(10, 10))
    assert writer.scalars == []
    assert make_view.reads == []


def test_event_files_do_not_wait_for_the_import_of_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    script = """
import sys
import hooks
with hooks.EventWriter(sys.argv[1]) as writer:
    writer.add_scalar("loss", 1.0, 1)
try:
    import torch
except SystemExit:
    print("found again")
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "events")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])},
        cwd=os.getcwd(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stdout) == (0, "found again\n"), run.stderr
