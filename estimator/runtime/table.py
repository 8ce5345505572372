"""The programs of a session: each compiled once, whoever asks for it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from typing import Any

from estimator.runtime.counters import Counters, Tally
from estimator.runtime.errors import CancelledError
from estimator.runtime.executable import Executable
from estimator.runtime.recipe import Recipe
from estimator.runtime.signature import Signature
from estimator.runtime.waiting import Deadline, Waits


@dataclasses.dataclass
class _Entry:
    promise: Future[Executable]
    thread: int  # that compiles it
    holders: int = 0
    kept: bool = False  # whatever its holders do


class ProgramTable:
    """Finds programs by function, options and signature, and compiles those that are missing.

    The table is locked only to look, never to compile: compiling one program holds up those
    who want that one, and nobody else.

    Args:
      waits: of the session.
      devices: the only `jax.Device`s to use; None for any.
    """

    def __init__(self, waits: Waits, devices: Sequence[Any] | None):
        self._waits = waits
        self._devices = devices
        self._tally = Tally()
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}
        self._compiling = 0

    @property
    def compiling(self) -> bool:
        """Whether a program is being compiled now."""
        return self._compiling > 0

    def find(
        self, recipe: Recipe, signature: Signature, deadline: Deadline, *, hold: bool
    ) -> Executable:
        """Returns the program, compiled here and now unless it was, or another thread does.

        Args:
          recipe: what to compile.
          signature: for which feeds.
          deadline: until when to wait for another thread that compiles it.
          hold: whether `release` will be called for it. Otherwise it is kept to the end.

        Raises:
          SessionClosedError: the session is closed.
          CancelledError: it was closed meanwhile.
          DeadlineExceededError: another thread compiled it for too long.
          FeedError: a feed lies on a device that is not to be used.
          Whatever the function raises when it is traced.
        """
        self._waits.check_open()
        key = (recipe.key, signature.key)
        with self._lock:
            entry = self._entries.get(key)
            hit = entry is not None
            self._tally.looked_up(hit)
            if entry is None:
                entry = _Entry(self._waits.promise(), threading.get_ident())
                self._entries[key] = entry
            entry.holders += hold
            entry.kept |= not hold
        name = recipe.names.function
        if not hit:
            self._compile(key, entry, recipe, signature)
        elif entry.thread == threading.get_ident() and not entry.promise.done():
            raise RuntimeError(
                f"{name} was run by its session while the session traced it, which would wait "
                "for itself. Inside a function call others directly, not through the session."
            )
        return self._waits.wait(entry.promise, deadline, f"compiling {name}")

    def _compile(self, key: Hashable, entry: _Entry, recipe: Recipe, signature: Signature) -> None:
        interrupt: BaseException | None = None

        def work() -> Executable:
            nonlocal interrupt
            try:
                return self._compiled(recipe, signature)
            except BaseException as error:
                with self._lock:
                    self._entries.pop(key, None)  # the next one who asks tries again
                if isinstance(error, Exception):
                    raise
                interrupt = error  # meant for this thread alone
                raise CancelledError(
                    f"The thread that compiled {recipe.names.function} was interrupted."
                ) from error

        with self._lock:
            self._compiling += 1
        try:
            self._waits.settle(entry.promise, work)
        finally:
            with self._lock:
                self._compiling -= 1
        if interrupt is not None:
            raise interrupt

    def _compiled(self, recipe: Recipe, signature: Signature) -> Executable:
        device = None
        if self._devices is not None:
            recipe.check_devices(signature, self._devices)
            device = self._devices[0]
        compiled, secs = recipe.compile(signature, device)
        return Executable(compiled, secs, signature, self._tally)

    def release(self, recipe: Recipe, signature: Signature) -> None:
        """Drops the program if no other holder is left."""
        key = (recipe.key, signature.key)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                entry.holders -= 1
                if entry.holders == 0 and not entry.kept:
                    del self._entries[key]

    def counters(self) -> Counters:
        """Returns a snapshot."""
        with self._lock:
            return self._tally.snapshot(len(self._executables()))

    def close(self) -> None:
        """Drops all programs; those who still hold one can no longer run it."""
        with self._lock:
            executables = self._executables()
            self._entries.clear()
        for executable in executables:
            executable.end(self._waits.closed_error)

    def _executables(self) -> list[Executable]:
        promises = [entry.promise for entry in self._entries.values()]
        return [p.result() for p in promises if p.done() and p.exception() is None]
