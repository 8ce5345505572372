"""What can go wrong between a caller and a compiled program."""

from __future__ import annotations


class FeedError(ValueError):
    """A feed is not what the program was compiled for, or no array at all."""


class DeadlineExceededError(TimeoutError):
    """What was asked for did not come in time. The device still finishes what it was given."""


class CancelledError(RuntimeError):
    """The session was closed while the caller waited."""


class SessionClosedError(RuntimeError):
    """The session was closed before the call."""


class ReleasedError(RuntimeError):
    """The callable was released before the call."""
