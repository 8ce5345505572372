"""What only imports."""

from __future__ import annotations

from benchmarks.peers.base import Peer
from benchmarks.tasks import Task


class Libraries(Peer):
    """The libraries that a hand-written script needs."""

    def __init__(self, task: Task):
        import optax  # noqa: F401


class Estimator(Peer):
    """The estimator, which imports them as well."""

    def __init__(self, task: Task):
        import estimator  # noqa: F401
