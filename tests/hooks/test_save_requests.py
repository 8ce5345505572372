import os
import signal
import threading

import pytest
from etils import epath

from hooks import SaveOnFile, SaveOnSignal


@pytest.fixture(autouse=True)
def handler_comes_back():
    before = signal.getsignal(signal.SIGUSR1)
    yield
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_signal_asks_once():
    with SaveOnSignal() as request:
        assert not request.pending()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert request.pending()
        assert not request.pending()


def test_signals_while_one_is_served_ask_once_more():
    with SaveOnSignal() as request:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert request.pending()
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        request.served()
        assert request.pending()
        assert not request.pending()


def test_a_handler_of_the_users_own_stays_in_force():
    heard = []
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with SaveOnSignal() as request:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not request.pending()
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_on_another_thread_nothing_is_watched():
    handlers = []

    def enter():
        with SaveOnSignal():
            handlers.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [signal.SIG_DFL]


def test_a_file_asks_and_is_gone_once_served(tmp_path, clock):
    path = epath.Path(tmp_path / "save_now")
    request = SaveOnFile(path, clock)
    clock.advance(5)
    assert not request.pending()
    path.touch()
    clock.advance(5)
    assert request.pending()
    assert path.exists()
    request.served()
    assert not path.exists()
    clock.advance(5)
    assert not request.pending()


def test_a_file_is_not_looked_for_behind_every_loop(tmp_path, clock):
    path = epath.Path(tmp_path / "save_now")
    path.touch()
    request = SaveOnFile(path, clock)
    clock.advance(4)
    assert not request.pending()
    clock.advance(1)
    assert request.pending()


def test_a_file_that_somebody_has_removed_meanwhile_is_served_all_the_same(tmp_path, clock):
    SaveOnFile(epath.Path(tmp_path / "save_now"), clock).served()
