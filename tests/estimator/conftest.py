"""Fixtures that watch what a test leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import jax
import pytest

from tests.fakes import threads_left


class CompilationCounter:
    """Counts what XLA compiles while it listens.

    Attributes:
      count: programs so far.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.count += 1


@pytest.fixture
def compilations() -> Iterator[CompilationCounter]:
    """Counts the compilations of the test."""
    counter = CompilationCounter()
    jax.monitoring.register_event_duration_secs_listener(counter)
    yield counter
    jax.monitoring.unregister_event_duration_listener(counter)


@pytest.fixture
def no_new_threads() -> Iterator[None]:
    """Fails the test if a thread that it started goes on after its end."""
    before = set(threading.enumerate())
    yield
    assert threads_left(before) == []


@pytest.fixture
def nothing_compiled(compilations: CompilationCounter) -> Iterator[None]:
    """Fails the test if it compiled a program."""
    jax.random.key(0)  # keys are made by a small program of their own, once a process
    before = compilations.count
    yield
    assert compilations.count == before
