"""Threads for work that a caller will not wait for without end."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("estimator")

Job = Callable[[], None]


class Workers:
    """Runs jobs at once, each on a thread of its own; a thread that is done is used again.

    Args:
      name: of the threads.
    """

    def __init__(self, name: str):
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Job | None]] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, job: Job) -> None:
        """Starts `job`, which must not raise. Once closed, drops it."""
        with self._lock:
            if self._closed:
                return
            inbox = self._idle.pop() if self._idle else self._start()
            inbox.put(job)

    def _start(self) -> queue.SimpleQueue[Job | None]:
        inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        name = f"{self._name} {len(self._threads)}"
        # A daemon, since what it runs cannot be stopped and must not keep the process alive.
        thread = threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return inbox

    def _serve(self, inbox: queue.SimpleQueue[Job | None]) -> None:
        while (job := inbox.get()) is not None:
            job()
            del job  # it holds feeds, which an idle thread must not keep alive
            with self._lock:
                if self._closed:
                    return
                self._idle.append(inbox)

    def close(self, join_secs: float) -> None:
        """Ends the threads; warns of those that are busy for `join_secs` more."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)
        until = time.monotonic() + join_secs
        for thread in self._threads:
            if thread is threading.current_thread():
                continue
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                logger.warning(
                    "Thread %s still waits for a device %g s after its session was closed; "
                    "left behind.",
                    thread.name,
                    join_secs,
                )
