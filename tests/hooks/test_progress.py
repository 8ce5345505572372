import dataclasses
import io
import re
import sys

import pytest

from hooks import ProgressHook


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def text(self):
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())


SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def terminal():
    return Terminal()


def test_the_bar_shows_the_step_the_total_and_the_rate(terminal, clock, make_view, make_context):
    hook = ProgressHook(terminal, clock)
    hook.begin(make_context(step=10, last_step=200))
    assert "10/200" in terminal.text()
    clock.advance(1)
    hook.after_loop(make_view(10, 60, elapsed_secs=4.0))
    hook.on_error(ValueError())
    assert "60/200" in terminal.text()
    assert "12.5 steps/s" in terminal.text()


def test_the_loss_shown_is_that_of_the_loop_before_so_the_device_is_not_awaited(
    terminal, clock, make_view, make_context
):
    hook = ProgressHook(terminal, clock)
    hook.begin(make_context(last_step=200))
    for step in (5, 10):
        clock.advance(1)
        hook.after_loop(make_view(step - 5, step, losses=[step] * 5))
    assert make_view.reads == [("losses", 5)]
    assert "loss 5" in terminal.text()
    hook.end(make_view(5, 10, losses=[10] * 5))
    assert "loss 10" in terminal.text()


def test_it_neither_draws_nor_reads_before_half_a_second_has_passed(
    terminal, clock, make_view, make_context
):
    hook = ProgressHook(terminal, clock)
    hook.begin(make_context(last_step=200))
    drawn = terminal.getvalue()
    for step in range(1, 50):
        clock.advance(0.01)
        hook.after_loop(make_view(step - 1, step))
    assert terminal.getvalue() == drawn
    assert make_view.reads == []
    hook.on_error(ValueError())


def test_an_unknown_total_is_shown_as_such(terminal, clock, make_context):
    hook = ProgressHook(terminal, clock)
    hook.begin(make_context(step=3))
    hook.on_error(ValueError())
    assert "3/?" in terminal.text()


def device_lost():
    raise RuntimeError("device lost")


@pytest.mark.parametrize("ending", ["end", "on_error", "an error while drawing the end"])
def test_the_terminal_is_as_before_however_the_run_ends(
    terminal, clock, make_view, make_context, monkeypatch, ending
):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", terminal)
    before = sys.stdout, sys.stderr
    hook = ProgressHook(clock=clock)
    hook.begin(make_context(last_step=200))
    assert terminal.getvalue().rfind(HIDE_CURSOR) > terminal.getvalue().rfind(SHOW_CURSOR)
    if ending == "end":
        hook.end(make_view(0, 5))
    elif ending == "on_error":
        hook.on_error(ValueError())
    else:
        lost = dataclasses.replace(make_view(0, 5), read_losses=device_lost)
        with pytest.raises(RuntimeError, match="device lost"):
            hook.end(lost)
    assert (sys.stdout, sys.stderr) == before
    assert terminal.getvalue().rfind(SHOW_CURSOR) > terminal.getvalue().rfind(HIDE_CURSOR)


def test_what_is_printed_to_a_pipe_still_goes_there(
    terminal, clock, make_context, monkeypatch, make_view
):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    hook = ProgressHook(terminal, clock)
    hook.begin(make_context(last_step=200))
    print("a result")
    hook.end(make_view(0, 5))
    assert pipe.getvalue() == "a result\n"
    assert "a result" not in terminal.text()


@pytest.mark.parametrize(
    ("stream", "is_chief"), [(io.StringIO(), True), (Terminal(), False)], ids=["file", "not chief"]
)
def test_it_is_silent_elsewhere_than_on_the_terminal_of_the_chief(
    stream, is_chief, clock, make_view, make_context
):
    hook = ProgressHook(stream, clock)
    hook.begin(make_context(last_step=5, is_chief=is_chief))
    clock.advance(1)
    hook.after_loop(make_view(0, 5))
    hook.end(make_view(0, 5))
    assert stream.getvalue() == ""
    assert make_view.reads == []


def test_a_second_run_draws_a_bar_of_its_own(terminal, clock, make_view, make_context):
    hook = ProgressHook(terminal, clock)
    hook.begin(make_context(last_step=5))
    hook.end(make_view(0, 5))
    hook.begin(make_context(step=5, last_step=9))
    hook.end(make_view(5, 9))
    assert "9/9" in terminal.text()


def test_predict_which_has_no_loss_shows_none(terminal, clock, make_view, make_context):
    hook = ProgressHook(terminal, clock)
    hook.begin(make_context(mode="infer"))
    hook.end(make_view(0, 5, losses=[], mode="infer"))
    assert "infer" in terminal.text()
    assert "loss" not in terminal.text()
