"""What a loop started from, so that one of its steps can be looked into when it went wrong."""

from __future__ import annotations

import jax

from estimator.infeed import Piece
from estimator.loop_body import batch_at
from estimator.programs import Programs
from estimator.state import TrainState
from estimator.tensor_report import TensorReport


class LoopStart:
    """Keeps a copy of the state before a loop, and the batches that it ran.

    Args:
      programs: that the loop was run by.
      step: global step of the state.
      state: before the loop.

    Attributes:
      pieces: the batches, in order; grows as they are dispatched.
    """

    def __init__(self, programs: Programs, step: int, state: TrainState):
        self.pieces: list[Piece] = []
        self._programs = programs
        self._step = step
        self._state = jax.tree.map(jax.numpy.copy, state)

    def trace(self, step: int) -> TensorReport:
        """Runs the loop again up to the step that led to global step `step`, and reports on it."""
        state, before = jax.tree.map(jax.numpy.copy, self._state), self._step
        for piece in self.pieces:
            count = min(piece.steps, step - 1 - before)
            if count > 0:
                state, _ = self._programs.train()(
                    state,
                    (),
                    piece.batches,
                    piece.start,
                    piece.start + count,
                    global_step=before,
                    steps_left=None,
                )
            before += count
            if count < piece.steps:
                batch = jax.jit(batch_at)(piece.batches, piece.start + count)
                return self._programs.trace(state, batch)
        raise ValueError(f"Step {step} is none of the loop from {self._step} to {before}.")
