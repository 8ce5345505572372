"""Watchers: they ask whoever runs this machine whether it is about to be taken away."""

from __future__ import annotations

import http.client
import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from hooks import checks

logger = logging.getLogger(__name__)


@runtime_checkable
class PreemptionWatcher(Protocol):
    """Knows whether this machine is about to be taken away.

    Attributes:
      every_secs: seconds between two questions.
    """

    every_secs: float

    def poll(self) -> str | None:
        """Returns why the run must stop, or None as long as it may go on.

        Called on a thread of its own, which waits for it at the end of the run: it should
        return within seconds. What it raises ends the run.
        """
        ...


def poll(watcher: PreemptionWatcher, over: threading.Event) -> str | None:
    """Asks `watcher` until it gives a reason, which is returned, or `over` is set.

    Raises:
      TypeError: `poll` returned no reason and not None.
      Whatever `poll` raises.
    """
    while not over.is_set():
        why = watcher.poll()
        if why is not None:
            return checks.reason(f"{type(watcher).__name__}.poll", why)
        over.wait(watcher.every_secs)
    return None


class FileWatcher:
    """Gives notice once a file exists, which a scheduler's script may make.

    A run that is started while it is there stops before its first loop.

    Args:
      path: of the file.
      every_secs: seconds between two looks.
    """

    def __init__(self, path: str | os.PathLike[str], every_secs: float = 1.0):
        self._path = Path(path)
        self.every_secs = checks.positive_secs("every_secs", every_secs)

    def poll(self) -> str | None:
        return f"the file {self._path} is there" if self._path.exists() else None


class CallableWatcher:
    """Gives notice once a function returns a reason.

    Args:
      function: takes nothing and returns a string, or None as long as there is no reason.
      every_secs: seconds between two calls.
    """

    def __init__(self, function: Callable[[], str | None], every_secs: float = 1.0):
        self._function = function
        self.every_secs = checks.positive_secs("every_secs", every_secs)

    def poll(self) -> str | None:
        return self._function()


class HttpWatcher:
    """Gives notice once a server says so, such as the metadata server of a cloud.

    A server that cannot be reached, or answers with an error, is no notice. The log says so when it
    begins, but for the error 404, with which some clouds say that there is none.

    Args:
      url: asked with GET, past any proxy.
      headers: of the request.
      is_notice: tells from the body of a good answer (status 200) whether it is one.
      every_secs: seconds between two requests.
      timeout_secs: of a request.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        is_notice: Callable[[str], bool] = bool,
        every_secs: float = 5.0,
        timeout_secs: float = 2.0,
    ):
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url={url!r} must begin with http:// or https://.")
        self._request = urllib.request.Request(url, headers=dict(headers or {}))
        self._is_notice = is_notice
        self.every_secs = checks.positive_secs("every_secs", every_secs)
        self._timeout_secs = checks.positive_secs("timeout_secs", timeout_secs)
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._answers = True

    @classmethod
    def google_cloud(cls, every_secs: float = 5.0) -> HttpWatcher:
        """Returns the watcher for a preemptible or spot VM of Google Cloud.

        Source: https://cloud.google.com/compute/docs/instances/create-use-preemptible
        """
        return cls(
            "http://metadata.google.internal/computeMetadata/v1/instance/preempted",
            headers={"Metadata-Flavor": "Google"},
            is_notice=lambda body: body.strip() == "TRUE",
            every_secs=every_secs,
        )

    def poll(self) -> str | None:
        url = self._request.full_url
        try:
            with self._open(self._request, timeout=self._timeout_secs) as answer:
                body = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            # 404 is how some clouds say that there is no notice.
            answers = isinstance(error, urllib.error.HTTPError) and error.code == 404
            if self._answers and not answers:
                logger.warning("%s gives no answer, and is asked on: %s", url, error)
            self._answers = answers
            return None
        self._answers = True
        return f"{url} gives notice" if self._is_notice(body) else None
