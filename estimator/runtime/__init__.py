"""Compiles programs, keeps them, runs them, and stops waiting for them in time."""

from estimator.runtime.callable import Callable as Callable
from estimator.runtime.compilation_cache import use_compilation_cache as use_compilation_cache
from estimator.runtime.counters import Counters as Counters
from estimator.runtime.errors import CancelledError as CancelledError
from estimator.runtime.errors import DeadlineExceededError as DeadlineExceededError
from estimator.runtime.errors import FeedError as FeedError
from estimator.runtime.errors import ReleasedError as ReleasedError
from estimator.runtime.errors import SessionClosedError as SessionClosedError
from estimator.runtime.metadata import RunMetadata as RunMetadata
from estimator.runtime.metadata import RunResult as RunResult
from estimator.runtime.program import Program as Program
from estimator.runtime.session import Session as Session
