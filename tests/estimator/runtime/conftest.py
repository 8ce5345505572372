"""Sessions, and functions that wait in the middle of a compile or a run until they may go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from estimator.runtime import Session

PATIENCE_SECS = 60.0  # after which a test that hangs fails instead


class Gate:
    """Holds up a function of one array, either on the device or while it is traced."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def await_reached(self) -> None:
        assert self.reached.wait(PATIENCE_SECS)

    def hold(self) -> None:
        self.reached.set()
        if not self._open.wait(PATIENCE_SECS):
            raise RuntimeError("nobody opened the gate")

    def running(self, x: jax.Array) -> jax.Array:
        """Returns x + 1; a run of it waits at the gate."""

        def held(value: Any) -> Any:
            self.hold()
            return value

        return jax.pure_callback(held, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    def tracing(self, x: jax.Array) -> jax.Array:
        """Returns x + 1; the trace of it waits at the gate."""
        self.hold()
        return x + 1


class Caller:
    """Calls a function on another thread and keeps what comes of it."""

    def __init__(self, fn: Callable[[], Any]):
        self._fn = fn
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        try:
            self._result = self._fn()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        """Waits; returns what the function returned, or raises what it raised."""
        self._thread.join(PATIENCE_SECS)
        assert not self._thread.is_alive(), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._result


@pytest.fixture
def session() -> Iterator[Session]:
    with Session() as opened:
        yield opened


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


@pytest.fixture
def call() -> type[Caller]:
    """Starts a function on another thread: `call(fn).result()`."""
    return Caller
