"""What asks a run to stop: who hears it, and when."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from hooks import CallableWatcher, StopNotice, StopNotices, StopOnNoticeHook

WAIT_SECS = 10  # only a test that fails waits for so long
GONE = StopNotice(why="the machine goes")


@pytest.fixture(autouse=True)
def _threads_and_handlers_are_as_before():
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    threads = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == threads
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_the_first_notice_counts():
    with StopNotices() as notices:
        assert notices.stop_before(3) is None
        os.kill(os.getpid(), signal.SIGTERM)
        notices.give(GONE)

    assert notices.first == StopNotice(why="SIGTERM was received")
    assert notices.stop_before(3) is notices.first


def test_ctrl_c_is_the_users_wish_and_a_second_one_is_raised():
    with StopNotices() as notices:
        os.kill(os.getpid(), signal.SIGINT)
        assert notices.first.interrupt
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_watcher_gives_notice_from_its_thread():
    heard = threading.Event()
    with StopNotices([CallableWatcher(lambda: "spot price")]) as notices:
        notices.listen(lambda notice: heard.set())
        assert heard.wait(WAIT_SECS)

    assert notices.first == StopNotice(why="spot price")


def test_who_listens_late_hears_of_a_notice_that_was_given_before():
    heard = []
    with StopNotices() as notices:
        notices.give(GONE)
        notices.listen(heard.append)

    assert heard == [GONE]


def test_the_error_of_a_watcher_is_raised_as_itself_at_the_next_loop():
    error, woken = ValueError("no such field"), threading.Event()

    def fail():
        raise error

    with pytest.raises(ValueError) as caught, StopNotices([CallableWatcher(fail)]) as notices:
        notices.listen(lambda notice: woken.set())
        assert woken.wait(WAIT_SECS)
        notices.stop_before(0)

    assert caught.value is error


def test_the_error_of_a_watcher_is_raised_at_the_end_at_the_latest():
    failed = threading.Event()

    def fail():
        failed.set()
        raise ValueError("no such field")

    with pytest.raises(ValueError, match="no such field"), StopNotices([CallableWatcher(fail)]):
        assert failed.wait(WAIT_SECS)


def test_one_within_another_hears_what_the_outer_hears_before_and_after():
    with StopNotices() as outer:
        with StopNotices() as first:
            os.kill(os.getpid(), signal.SIGTERM)
        with StopNotices() as second:
            assert second.first is outer.first
    with StopNotices() as alone:
        assert alone.first is None

    assert first.first is outer.first is not None


def test_one_on_another_thread_hears_what_the_main_thread_hears():
    seen = []

    def run():
        with StopNotices() as notices:
            seen.append(notices.first)

    with StopNotices() as outer:
        os.kill(os.getpid(), signal.SIGTERM)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    assert seen == [outer.first]


def test_a_watcher_of_the_outer_one_is_not_asked_twice():
    threads = []
    watcher = CallableWatcher(lambda: threads.append(threading.current_thread()), every_secs=1e-3)
    with StopNotices([watcher]), StopNotices([watcher]):
        pass

    assert len(set(threads)) == 1


@pytest.mark.parametrize("interrupted_before", [False, True])
def test_a_run_that_outlasts_the_grace_period_ends_with_143(caplog, interrupted_before):
    codes, ended = [], threading.Event()

    def exit_process(code):
        codes.append(code)
        ended.set()

    with StopNotices(grace_secs=1e-3, exit_process=exit_process) as notices:
        if interrupted_before:
            notices.give(StopNotice(why="Ctrl-C", interrupt=True))
        notices.give(GONE)
        assert ended.wait(WAIT_SECS)

    assert codes == [143]
    assert "test_notices.py" in caplog.text  # where the main thread was


def test_neither_a_run_that_ends_in_time_nor_ctrl_c_is_ended_by_force():
    codes = []
    with StopNotices(grace_secs=1000, exit_process=codes.append) as notices:
        notices.give(GONE)
    with StopNotices(grace_secs=1e-6, exit_process=codes.append) as notices:
        notices.give(StopNotice(why="Ctrl-C", interrupt=True))

    assert codes == []


def test_the_hook_stops_before_a_loop_and_says_why():
    notices = StopNotices()
    hook = StopOnNoticeHook(notices)
    assert hook.before_loop(5) is None

    notices.give(GONE)
    assert hook.before_loop(5) == GONE.why
