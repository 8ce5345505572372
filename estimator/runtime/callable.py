"""A program that its holder runs again and again."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable as Function
from typing import Any

from estimator.runtime.errors import ReleasedError
from estimator.runtime.executable import Executable
from estimator.runtime.metadata import RunMetadata
from estimator.runtime.waiting import Deadline, Waits, checked_timeout


class Callable:
    """A program compiled ahead of time, for feeds of one structure, shapes and dtypes.

    `Session.make_callable` makes it. Any number of threads may run it at once.
    """

    def __init__(
        self,
        name: str,
        executable: Executable,
        waits: Waits,
        timeout_secs: float | None,
        on_release: Function[[], None],
    ):
        self._name = name
        self._waits = waits
        self._timeout_secs = timeout_secs
        self._start: Function[..., Any] = executable.start
        self._finish: Function[..., Any] = executable.finish
        self._mismatch: Function[..., Exception | None] = executable.mismatch
        self._metadata: Function[[], RunMetadata] = executable.metadata
        self._releasing = threading.Lock()
        self._on_release: Function[[], None] | None = on_release

    def run(self, *feeds: Any, timeout_secs: float | None = None) -> Any:
        """Runs the program.

        Args:
          *feeds: arrays as it was compiled for. Donated ones are gone afterwards, and may be
            where DeadlineExceededError or CancelledError is raised.
          timeout_secs: how long to wait for the outputs; that of the session if None. An
            infinite one waits as long as it takes, but not beyond the session's end.

        Returns:
          The outputs, or what is fetched of them. Without a timeout as soon as the devices
          have the program, as from a jitted function; with one, when they are computed.

        Raises:
          FeedError: wrong number, structure, shape, dtype or place of feeds; names which.
          DeadlineExceededError: the outputs did not come in time. The devices go on.
          CancelledError: the session was closed meanwhile. The devices go on.
          ReleasedError, SessionClosedError: it was too late for this call.
        """
        if timeout_secs is None:
            timeout_secs = self._timeout_secs
        try:
            if timeout_secs is None:
                return self._start(*feeds)
            deadline = Deadline(checked_timeout("timeout_secs", timeout_secs))
            work = functools.partial(self._finish, *feeds)
            return self._waits.run(work, deadline, f"running {self._name}")
        except (TypeError, ValueError) as error:
            mismatch = self._mismatch(feeds)
            if mismatch is None:
                raise
            raise mismatch from error

    def metadata(self) -> RunMetadata:
        """Returns what the compiler tells about the program."""
        return self._metadata()

    def release(self) -> None:
        """Gives the program up: `run` raises ReleasedError from now on. May be called again.

        Its memory is freed once nobody else in the session uses the same program.
        """
        with self._releasing:
            on_release, self._on_release = self._on_release, None
        if on_release is not None:
            self._start = self._finish = self._mismatch = self._metadata = self._refuse
            on_release()

    def _refuse(self, *feeds: Any) -> Any:
        raise ReleasedError(
            f"This callable of {self._name} was released. Make another with make_callable."
        )
