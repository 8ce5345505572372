"""The one place that compiles programs and runs them."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable as Function
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from estimator.runtime import metadata
from estimator.runtime.callable import Callable
from estimator.runtime.counters import Counters
from estimator.runtime.executable import Executable
from estimator.runtime.metadata import RunResult
from estimator.runtime.program import Program
from estimator.runtime.recipe import Recipe
from estimator.runtime.table import ProgramTable
from estimator.runtime.waiting import Deadline, Waits, checked_timeout

_live: set[tuple[str, int]] = set()
_live_lock = threading.Lock()


class Session:
    """Compiles functions, keeps what it compiled, and runs it, for any number of threads.

    What a function reads besides its feeds (globals, contexts such as
    `jax.default_matmul_precision`) counts as it was when it was compiled. A function that is
    made anew for each call, such as a lambda, is compiled anew, so hold on to it. A Python
    number is fed as an array of its type: no feed is weakly typed.

    A run without a timeout is dispatched by the caller's thread; one with a timeout by a thread
    of the session, where such contexts do not hold. Closing the session ends these threads.

    Args:
      name: refused while another session of this name and version is open; None for none.
      version: of what runs in it, at least 0.
      devices: the `jax.Device`s to use, the first of them where nothing else is said; all of
        JAX's if None.
      operation_timeout_secs: for every run that brings no timeout of its own; None for no
        limit, which is also the only way to run without waiting for the outputs.

    Raises:
      ValueError: name and version are taken, or an argument is wrong.
    """

    def __init__(
        self,
        name: str | None = None,
        version: int = 0,
        devices: Sequence[Any] | None = None,
        operation_timeout_secs: float | None = None,
    ):
        if name is not None and (not isinstance(name, str) or not name):
            raise ValueError(f"name={name!r} must be a string that is not empty, or None.")
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise ValueError(f"version={version!r} must be an int of at least 0.")
        if devices is not None and not devices:
            raise ValueError("devices=[] is empty. Use None for all devices.")
        self._timeout_secs = checked_timeout("operation_timeout_secs", operation_timeout_secs)
        self._identity = None if name is None else (name, version)
        if self._identity is not None:
            _claim(self._identity)
        self._waits = Waits("session" if name is None else f"session '{name}' version {version}")
        self._table = ProgramTable(self._waits, None if devices is None else tuple(devices))

    def program(
        self,
        fn: Function[..., Any],
        *,
        fetches: Any = None,
        donate: int | Sequence[int] = (),
        out_shardings: Any = None,
    ) -> Program:
        """Returns `fn` so that it runs in this session: `jax.jit` for those who run a session.

        Args:
          fn: a pure function of arrays, as for `jax.jit`. What is static it has in its
            closure. One that `jax.jit` made is taken with its own options.
          fetches: paths of the wanted outputs, such as `"loss"` or `("loss", "metrics/auc")`:
            a pytree of strings, whose structure is that of what is returned. What only the
            other outputs need is not compiled. None for all outputs.
          donate: positions of the arguments whose memory the outputs may take over.
          out_shardings: where to put what is returned: a pytree prefix of it, None where JAX
            may choose.

        Raises:
          TypeError, ValueError: these do not go together.
          SessionClosedError: the session is closed.
        """
        self._waits.check_open()
        recipe = Recipe(fn, fetches, donate, out_shardings)
        return Program(recipe, self._table, self._waits, self._timeout_secs)

    def make_callable(
        self,
        fn: Function[..., Any],
        feeds: tuple[Any, ...],
        fetches: Any = None,
        *,
        donate: int | Sequence[int] = (),
        out_shardings: Any = None,
    ) -> Callable:
        """Compiles `fn` ahead of time, unless this session has; see `program` for the options.

        Args:
          fn: as for `program`.
          feeds: one entry for each positional argument: arrays, or in place of each a
            `jax.ShapeDtypeStruct`, with a sharding if the feed will have one.
          fetches: as for `program`.
          donate: as for `program`.
          out_shardings: as for `program`.

        Raises:
          TypeError, ValueError: these do not go together.
          FeedError: a feed is no array, or lies where the session has no device.
          SessionClosedError: the session is closed.
          DeadlineExceededError: another thread has been compiling it for longer than
            `operation_timeout_secs`.
          CancelledError: the session was closed meanwhile.
          Whatever `fn` raises when it is traced.
        """
        program = self.program(fn, fetches=fetches, donate=donate, out_shardings=out_shardings)
        return program.make_callable(*_checked_tuple(feeds))

    def run(
        self,
        fn: Function[..., Any],
        feeds: tuple[Any, ...],
        fetches: Any = None,
        *,
        donate: int | Sequence[int] = (),
        out_shardings: Any = None,
        timeout_secs: float | None = None,
    ) -> Any:
        """Runs `fn`, compiled for such feeds before or now, and keeps the program.

        Args:
          fn: as for `program`.
          feeds: one array, or pytree of arrays, for each positional argument.
          fetches: as for `program`.
          donate: as for `program`.
          out_shardings: as for `program`.
          timeout_secs: as for `Callable.run`. To compile it if nobody has cannot be cut short,
            but it counts: a run whose time is over by then does not begin.

        Returns:
          As `Callable.run`.

        Raises:
          As `make_callable` and `Callable.run`.
        """
        deadline = self._deadline(timeout_secs)
        recipe = Recipe(fn, fetches, donate, out_shardings)
        executable = self._find(recipe, feeds, deadline)
        if deadline.timeout_secs is None:
            return executable.start(*feeds)
        return self._finish(recipe, executable, feeds, deadline)

    def run_with_metadata(
        self,
        fn: Function[..., Any],
        feeds: tuple[Any, ...],
        fetches: Any = None,
        *,
        donate: int | Sequence[int] = (),
        out_shardings: Any = None,
        timeout_secs: float | None = None,
        trace_dir: str | os.PathLike[str] | None = None,
    ) -> RunResult:
        """As `run`, but waits for the outputs and tells what they cost.

        Args:
          fn: as for `program`.
          feeds: as for `run`.
          fetches: as for `program`.
          donate: as for `program`.
          out_shardings: as for `program`.
          timeout_secs: as for `run`.
          trace_dir: if given, the run is traced by `jax.profiler`, for TensorBoard or Perfetto,
            and the times of its operations are part of the metadata. Only one trace can be
            taken at a time in a process, and it holds all that runs meanwhile.

        Raises:
          As `run`.
          RuntimeError: another trace is being taken.
        """
        deadline = self._deadline(timeout_secs)
        recipe = Recipe(fn, fetches, donate, out_shardings)
        executable = self._find(recipe, feeds, deadline)
        cost = executable.metadata()
        if trace_dir is None:
            outputs = self._finish(recipe, executable, feeds, deadline)
        else:
            with jax.profiler.trace(trace_dir):
                outputs = self._finish(recipe, executable, feeds, deadline)
            cost = dataclasses.replace(cost, op_secs=metadata.op_secs(Path(trace_dir)))
        return RunResult(outputs=outputs, metadata=cost)

    def _deadline(self, timeout_secs: float | None) -> Deadline:
        timeout_secs = checked_timeout("timeout_secs", timeout_secs)
        return Deadline(self._timeout_secs if timeout_secs is None else timeout_secs)

    def _find(self, recipe: Recipe, feeds: tuple[Any, ...], deadline: Deadline) -> Executable:
        self._waits.check_open()
        signature = recipe.signature(_checked_tuple(feeds))
        return self._table.find(recipe, signature, deadline, hold=False)

    def _finish(
        self, recipe: Recipe, executable: Executable, feeds: tuple[Any, ...], deadline: Deadline
    ) -> Any:
        work = functools.partial(executable.finish, *feeds)
        return self._waits.run(work, deadline, f"running {recipe.names.function}")

    @property
    def compiling(self) -> bool:
        """Whether a program is being compiled now, by any thread."""
        return self._table.compiling

    def counters(self) -> Counters:
        """Returns how much was done so far; still after `close`."""
        return self._table.counters()

    def close(self) -> None:
        """Ends the session; may be called again, and from any thread.

        Who waits for a run with a timeout, or for another thread to compile, gets
        CancelledError at once. Everything else that comes later gets SessionClosedError.
        What the devices have begun they finish; its threads wait for that a few seconds at most.
        """
        if not self._waits.cancel():
            return
        try:
            self._table.close()
            self._waits.join()
        finally:
            if self._identity is not None:
                with _live_lock:
                    _live.discard(self._identity)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _claim(identity: tuple[str, int]) -> None:
    with _live_lock:
        if identity in _live:
            name, version = identity
            raise ValueError(
                f"A session '{name}' version {version} is open. Close it first, or use another "
                "name or version."
            )
        _live.add(identity)


def _checked_tuple(feeds: Any) -> tuple[Any, ...]:
    if not isinstance(feeds, tuple):
        raise TypeError(
            f"feeds must be a tuple with one entry for each positional argument, got "
            f"{type(feeds)}. A single argument is fed as (x,)."
        )
    return feeds
