"""Contests: who takes part, what is asked of the estimator, and how it is measured.

Contestants live in processes of their own, in environments of their own, and are measured in turn,
in rounds, in an order that rotates. So a slower minute of the machine hits them all, and ratios
are taken within a round.
"""

from __future__ import annotations

import dataclasses
import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from benchmarks.tasks import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contestant:
    """Who takes part in a contest.

    Attributes:
      name: for the table.
      peer: the class, as "module:class" below `benchmarks.peers`; imported in its process only.
      task: what it does; the first argument of the class.
      arguments: the others, by name.
      environment: "jax" or "tensorflow": which Python runs it.
      fresh: measures how long a new process takes until the class is made, instead of calling
        `measure` of one that is kept.
    """

    name: str
    peer: str
    task: Task
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: str = "jax"
    fresh: bool = False

    def make(self) -> Any:
        """Returns the peer, ready to be measured. Takes as long as its compilations."""
        module, _, name = self.peer.partition(":")
        peer = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
        return peer(self.task, **self.arguments)


Measurements = Mapping[str, Sequence[float]]
"""For each contestant what was measured in each round."""


class Target(Protocol):
    """What the estimator is to reach in a contest."""

    @property
    def names(self) -> Sequence[str]:
        """The contestants that it is about."""
        ...

    @property
    def text(self) -> str:
        """What is asked."""
        ...

    def value(self, measured: Measurements) -> float:
        """Returns what was reached: the median over the rounds."""
        ...

    def met(self, value: float) -> bool:
        """Says whether that is enough."""
        ...


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """The rate of `subject` is at least `bound` times that of the best of `peers`."""

    bound: float
    subject: str
    peers: tuple[str, ...]

    @property
    def names(self) -> Sequence[str]:
        return (self.subject, *self.peers)

    @property
    def text(self) -> str:
        of = self.peers[0] if len(self.peers) == 1 else f"the best of {', '.join(self.peers)}"
        return f"{self.subject}: at least {self.bound:g} of {of}"

    def value(self, measured: Measurements) -> float:
        best = max(self.peers, key=lambda peer: statistics.median(measured[peer]))
        return median_of(measured, self.subject, best, lambda ours, theirs: ours / theirs)

    def met(self, value: float) -> bool:
        return value >= self.bound


@dataclasses.dataclass(frozen=True)
class AtMost:
    """`subject` takes at most `bound` times as long as `peer`."""

    bound: float
    subject: str
    peer: str

    @property
    def names(self) -> Sequence[str]:
        return (self.subject, self.peer)

    @property
    def text(self) -> str:
        return f"{self.subject}: at most {self.bound:g} times {self.peer}"

    def value(self, measured: Measurements) -> float:
        return median_of(measured, self.subject, self.peer, lambda ours, theirs: ours / theirs)

    def met(self, value: float) -> bool:
        return value <= self.bound


@dataclasses.dataclass(frozen=True)
class AtMostMore:
    """`subject` takes at most `bound` seconds more than `peer`."""

    bound: float
    subject: str
    peer: str

    @property
    def names(self) -> Sequence[str]:
        return (self.subject, self.peer)

    @property
    def text(self) -> str:
        return f"{self.subject}: at most {self.bound:g} s more than {self.peer}"

    def value(self, measured: Measurements) -> float:
        return median_of(measured, self.subject, self.peer, lambda ours, theirs: ours - theirs)

    def met(self, value: float) -> bool:
        return value <= self.bound


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contest:
    """One question, put to several contestants.

    Attributes:
      title: of the section in the results.
      about: what is measured and how, in Markdown.
      unit: of what is measured: a rate (more is better) or "s" (less is better).
      subject: the contestant that the others are compared with.
      contestants: in the order of the table.
      targets: what the subject is to reach.
      rounds: that each contestant is measured in.
      secs: that one measurement lasts, about; contestants with a fixed amount of work ignore it.
    """

    title: str
    about: str
    unit: str
    subject: str
    contestants: Sequence[Contestant]
    targets: Sequence[Target]
    rounds: int = 7
    secs: float = 2.0

    def __post_init__(self) -> None:
        names = [contestant.name for contestant in self.contestants]
        if len(set(names)) < len(names):
            raise ValueError(f"Two contestants have the same name: {names}.")
        unknown = {name for target in self.targets for name in target.names} - set(names)
        if self.subject not in names or unknown:
            raise ValueError(f"{[self.subject, *unknown]} must be contestants: {names}.")

    def contestant(self, name: str) -> Contestant:
        """Returns the contestant of this name."""
        return next(one for one in self.contestants if one.name == name)


def median_of(
    measured: Measurements, ours: str, theirs: str, compare: Callable[[float, float], float]
) -> float:
    """Returns the median over the rounds of what `compare` makes of two contestants."""
    pairs = zip(measured[ours], measured[theirs], strict=True)
    return statistics.median(compare(one, other) for one, other in pairs)


def run_rounds(measures: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Returns what each of `measures` returns in each round; the order rotates."""
    measured: dict[str, list[float]] = {name: [] for name in measures}
    order = list(measures)
    for _ in range(rounds):
        for name in order:
            measured[name].append(measures[name]())
        order = order[1:] + order[:1]
    return measured
