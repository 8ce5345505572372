"""Chooses the shape of a loop from the times of its first real steps."""

from __future__ import annotations

import enum
import logging
import statistics
from typing import NamedTuple

logger = logging.getLogger(__name__)

UNROLLED_STEPS = 10
"""Steps in one unrolled chunk."""

_SAMPLE_SECS = 0.01  # a sample is made of steps that take about so long together
_SAMPLES = 3
_MARGIN = 0.03  # what a challenger has to be faster by: less may be noise
_SHORT_SECS = 5.0  # a run of less has little to win, and repeats bit for bit in one shape
_HOPELESS = 3.0  # a challenger whose first steps are so many times slower is not timed further


class LoopShape(enum.StrEnum):
    """How steps are put into programs."""

    DEVICE_LOOP = "device_loop"
    UNROLLED = "unrolled"
    PER_STEP = "per_step"


class Run(NamedTuple):
    """What to do next.

    Attributes:
      shape: what to run in.
      steps: how many to run.
      timed: whether to say how long they took.
      whole: whether `steps` are all that could be run at once.
    """

    shape: LoopShape
    steps: int
    timed: bool = False
    whole: bool = True


_GAIN = {LoopShape.DEVICE_LOOP: 0.5, LoopShape.PER_STEP: 0.5, LoopShape.UNROLLED: 0.2}
"""The part of the run time that a shape may save, at the most that was seen."""

_COMPILE_FACTOR = {
    LoopShape.DEVICE_LOOP: 1,
    LoopShape.PER_STEP: 1,
    LoopShape.UNROLLED: UNROLLED_STEPS,
}
"""Compile time in terms of a program with the step once in it."""


_CHALLENGERS = (LoopShape.DEVICE_LOOP, LoopShape.PER_STEP, LoopShape.UNROLLED)
"""The cheapest to compile go first."""


class ShapeChoice:
    """Tournament of the loop shapes of one program; every timed step is a step of the run.

    The first shape serves at once. The others challenge it one after the other, each only in
    a run that lasts for seconds, and only if the compilation that it needs, predicted from the
    first one, can be won back: by the steps that are left where their number is known, else by
    as many as have been run (as in renting skis: one that pays when as much has been spent
    costs at most twice the best). A duel alternates between the two shapes, so that a slower or
    faster minute of the machine hits both.

    Attributes:
      settled: the shape that is kept from now on; None while others may be tried.
      measures: whether it is chosen by measurement.

    Args:
      fixed: takes this shape and measures nothing.
      first: what to begin with, and to keep unless another is faster.
    """

    def __init__(self, *, fixed: LoopShape | None, first: LoopShape):
        self.measures = fixed is None
        self.settled = fixed
        self._champion = first if fixed is None else fixed
        self._challengers = [shape for shape in _CHALLENGERS if shape is not first]
        self._measured: set[LoopShape] = set()
        self._duel: dict[LoopShape, list[float]] | None = None
        self._step_secs: dict[LoopShape, float] = {}
        self._compile_secs: float | None = None
        self._put_off: set[LoopShape] = set()
        self._elapsed_secs = 0.0

    @property
    def current(self) -> LoopShape:
        """The fastest shape that is known so far."""
        return self._champion

    def next_run(self, at_most: int, steps_left: int | None) -> Run:
        """Returns what to run next.

        Args:
          at_most: steps that can be run at once.
          steps_left: steps of the whole run from here, or None if unknown.
        """
        if self.settled is not None:
            return Run(self.settled, at_most)
        if self._champion not in self._measured:
            return self._sample(self._champion, at_most)
        while self._challengers:
            challenger = self._challengers[0]
            if self._duel is None:
                if not self._worth(challenger, steps_left):
                    return Run(self._champion, at_most)
                self._duel = {self._champion: [], challenger: []}
            behind = min(self._duel, key=lambda shape, duel=self._duel: len(duel[shape]))
            if len(self._duel[behind]) == _SAMPLES:
                self._end_duel(challenger)
            elif at_most < _least(behind):
                return Run(self._champion, at_most)
            else:
                return self._sample(behind, at_most)
        self.settled = self._champion
        return Run(self.settled, at_most)

    def compiled(self, shape: LoopShape, secs: float) -> None:
        """Takes note of what the compilation of `shape` took."""
        if self._compile_secs is None:
            self._compile_secs = secs / _COMPILE_FACTOR[shape]

    def untimed(self, run: Run) -> None:
        """Takes note of a run that was not timed."""
        self._elapsed_secs += run.steps * self._step_secs.get(run.shape, 0.0)

    def timed(self, run: Run, secs: float) -> None:
        """Takes note of what a run took."""
        self._elapsed_secs += secs
        first = run.shape not in self._step_secs
        self._step_secs[run.shape] = secs / run.steps
        # The very first run does more than run, and a short one tells only how many steps
        # make a sample.
        if first or not (secs > _SAMPLE_SECS / 2 or run.whole):
            return
        self._measured.add(run.shape)
        if self._duel is not None:
            samples = self._duel[run.shape]
            samples.append(secs / run.steps)
            self._step_secs[run.shape] = statistics.median(samples)
            if self._step_secs[run.shape] > _HOPELESS * self._step_secs[self._champion]:
                self._end_duel(run.shape)

    def _sample(self, shape: LoopShape, at_most: int) -> Run:
        least = _least(shape)
        wanted = least
        if shape in self._step_secs:
            wanted = int(_SAMPLE_SECS / max(self._step_secs[shape], 1e-9)) + 1
        most = at_most // least * least
        steps = min(max(wanted // least * least, least), most)
        return Run(shape, steps, timed=True, whole=steps == most)

    def _worth(self, challenger: LoopShape, steps_left: int | None) -> bool:
        assert self._compile_secs is not None  # the champion has run
        secs = self._step_secs[self._champion]
        horizon = max(self._elapsed_secs, (steps_left or 0) * secs)
        price = self._compile_secs * _COMPILE_FACTOR[challenger]
        least = max(price / _GAIN[challenger], _SHORT_SECS)
        if horizon <= least and challenger not in self._put_off:
            self._put_off.add(challenger)
            logger.info(
                "Loop shape: %s, at %s. %s is not tried before %.0f s of steps can win back its "
                "compilation (%.1f s).",
                self._champion,
                _human(secs),
                challenger,
                least,
                price,
            )
        return horizon > least

    def _end_duel(self, challenger: LoopShape) -> None:
        self._challengers.remove(challenger)
        self._duel = None
        mine, other = self._step_secs[self._champion], self._step_secs[challenger]
        loser = challenger
        if other < (1 - _MARGIN) * mine:
            self._champion, loser = challenger, self._champion
        logger.info(
            "Loop shape: %s, at %s. %s takes %s.",
            self._champion,
            _human(self._step_secs[self._champion]),
            loser,
            _human(self._step_secs[loser]),
        )


def _least(shape: LoopShape) -> int:
    """Returns how few steps the shape can run."""
    return UNROLLED_STEPS if shape is LoopShape.UNROLLED else 1


def _human(secs: float) -> str:
    return f"{secs * 1e6:.0f} us/step" if secs < 1e-3 else f"{secs * 1e3:.2f} ms/step"
