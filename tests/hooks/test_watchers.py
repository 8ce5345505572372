"""What tells that a machine is about to be taken away."""

from __future__ import annotations

import http.server
import threading

import pytest

from hooks import CallableWatcher, FileWatcher, HttpWatcher
from hooks.watchers import poll


@pytest.fixture
def server():
    """A server on this machine that answers what `server.answers` says, one after the other."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            made.flavors.append(self.headers["Metadata-Flavor"])
            status, body = made.answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    made = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    made.answers, made.flavors = [], []
    made.url = f"http://127.0.0.1:{made.server_address[1]}/preempted"
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_file_is_a_notice_as_soon_as_it_is_there(tmp_path):
    watcher = FileWatcher(tmp_path / "preempted")
    assert watcher.poll() is None

    (tmp_path / "preempted").touch()
    assert str(tmp_path / "preempted") in watcher.poll()


def test_a_server_gives_notice_by_what_it_answers(server):
    watcher = HttpWatcher(
        server.url,
        headers={"Metadata-Flavor": "Google"},
        is_notice=lambda body: body.strip() == "TRUE",
    )
    server.answers = [(200, b"FALSE"), (404, b"TRUE"), (200, b"TRUE\n")]

    assert [watcher.poll(), watcher.poll()] == [None, None]
    assert server.url in watcher.poll()
    assert server.flavors == ["Google"] * 3


def test_a_server_that_fails_is_no_notice_and_is_logged_once(server, caplog):
    server.answers = [(500, b"TRUE")] * 2 + [(200, b"")]
    watcher = HttpWatcher(server.url)

    assert [watcher.poll() for _ in range(3)] == [None] * 3
    assert caplog.text.count("gives no answer") == 1


def test_a_server_that_is_not_there_is_no_notice(server, caplog):
    server.server_close()  # its port is free again, and nobody listens

    assert HttpWatcher(server.url).poll() is None
    assert server.url in caplog.text


def test_a_404_is_an_answer_and_not_logged(server, caplog):
    server.answers = [(404, b"")]

    assert HttpWatcher(server.url).poll() is None
    assert caplog.text == ""


def test_proxies_of_the_environment_are_passed_by(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server.answers = [(200, b"yes")]

    assert HttpWatcher(server.url).poll() is not None


def test_polling_goes_on_until_there_is_a_reason():
    answers = [None, None, "maintenance", None]
    watcher = CallableWatcher(lambda: answers.pop(0), every_secs=1e-6)

    assert poll(watcher, threading.Event()) == "maintenance"
    assert answers == [None]


def test_polling_ends_with_the_run():
    over = threading.Event()
    watcher = CallableWatcher(over.set, every_secs=1e-6)  # which returns None

    assert poll(watcher, over) is None


def test_an_answer_that_is_no_reason_is_refused():
    with pytest.raises(TypeError, match=r"CallableWatcher.poll returned True"):
        poll(CallableWatcher(lambda: True), threading.Event())


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileWatcher("f", every_secs=0),
        lambda: CallableWatcher(print, every_secs=-1),
        lambda: HttpWatcher("http://x", timeout_secs=0),
        lambda: HttpWatcher("metadata.google.internal"),
    ],
)
def test_wrong_arguments_are_refused(make):
    with pytest.raises(ValueError, match="must"):
        make()
