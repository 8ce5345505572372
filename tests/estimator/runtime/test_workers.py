from __future__ import annotations

import gc
import threading
import weakref

from estimator.runtime.workers import Workers


class IdleWatch(list):
    """Takes the place of the list of idle threads, and tells when one is added."""

    def __init__(self) -> None:
        super().__init__()
        self.added = threading.Semaphore(0)

    def append(self, item):
        super().append(item)
        self.added.release()

    def await_one(self):
        assert self.added.acquire(timeout=60)


def test_jobs_run_at_once_each_on_a_thread_of_its_own(gate):
    workers = Workers("test")
    done = threading.Event()
    workers.submit(gate.hold)
    gate.await_reached()
    workers.submit(done.set)
    assert done.wait(60)
    gate.open()
    workers.close(join_secs=60)


def test_a_thread_that_is_done_is_used_again():
    workers = Workers("test")
    workers._idle = idle = IdleWatch()
    idents = []
    for _ in range(3):
        workers.submit(lambda: idents.append(threading.get_ident()))
        idle.await_one()
    workers.close(join_secs=60)
    assert len(idents) == 3 and len(set(idents)) == 1


def test_closing_joins_every_thread(gate):
    workers = Workers("test")
    workers.submit(gate.hold)
    gate.await_reached()
    gate.open()
    workers.close(join_secs=60)
    assert not any(thread.is_alive() for thread in workers._threads)


def test_a_thread_that_stays_busy_is_left_behind_with_a_warning(gate, caplog):
    workers = Workers("test")
    workers.submit(gate.hold)
    gate.await_reached()
    workers.close(join_secs=0.0)
    assert "Thread test 0 still waits for a device" in caplog.text
    gate.open()
    workers._threads[0].join(60)
    assert not workers._threads[0].is_alive()


def test_a_job_after_closing_is_dropped():
    workers = Workers("test")
    workers.close(join_secs=0.0)
    workers.submit(lambda: None)
    assert workers._threads == []


def test_an_idle_thread_does_not_keep_its_last_job_alive():
    class Feed:
        pass

    workers = Workers("test")
    workers._idle = idle = IdleWatch()
    feed = Feed()
    gone = weakref.ref(feed)
    workers.submit(lambda feed=feed: None)
    del feed
    idle.await_one()
    gc.collect()
    assert gone() is None
    workers.close(join_secs=60)
