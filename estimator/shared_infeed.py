"""An infeed on every process of a job, which give pieces of the same batches together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from estimator.batches import Stacked
from estimator.hosts import Hosts
from estimator.infeed import Infeed, Piece


class SharedInfeed:
    """Agrees with the other processes before each piece, so that all take the same steps.

    Every process reads its own part of each batch, in transfers of the same capacity that are
    full but for the last one. So the batches of one number stand at the same place everywhere.

    Args:
      infeed: of this process.
      hosts: the processes.
      filler: makes a transfer without a real example, for a process whose input has ended
        before that of others; None ends the input of all with the shortest.
      full_mask: makes the mask of a transfer without padding, for a transfer that has padding
        on another process.
    """

    def __init__(
        self,
        infeed: Infeed,
        hosts: Hosts,
        *,
        filler: Callable[[], Stacked] | None,
        full_mask: Callable[[], jax.Array],
    ):
        self._infeed = infeed
        self._hosts = hosts
        self._filler = filler
        self._full_mask = full_mask
        self._filling: Stacked | None = None

    @property
    def ready(self) -> bool:
        """True: whether to wait must not depend on what has come to this process alone."""
        return True

    def lap(self) -> tuple[float, float]:
        """See `Infeed.lap`."""
        return self._infeed.lap()

    def take(self, at_most: int) -> Piece | None:
        """Returns the next piece, of the same steps on every process, or None at the end of the
        input on every process.

        Raises:
          HostError: another process failed, or does something else.
          Also the error of the input, as itself.
        """
        offer = self._infeed.offer(at_most)
        if offer is None:
            own = (0, 0, 0, 0)
        else:
            own = (offer.steps, offer.start, offer.batches.mask is not None, offer.examples)
        offered = self._hosts.agree("input", *own)
        steps, starts, masked, examples = offered.T
        live = steps > 0
        if not live.any() or (self._filler is None and not live.all()):
            return None
        taken = int(steps[live].min())
        if (starts[live] != starts[live][0]).any():
            raise AssertionError(f"the transfers of the processes are apart: {offered.tolist()}")
        if offer is None:
            piece = self._filled(int(starts[live][0]), taken)
        else:
            piece = self._infeed.take(taken)
            assert piece is not None
        if masked.any() and piece.batches.mask is None:
            batches = piece.batches.with_mask(self._full_mask())
            piece = dataclasses.replace(piece, batches=batches)
        if (steps[live] != taken).any():  # some have offered more than was taken
            rows = int(piece.rows.sum())
            examples = self._hosts.agree("examples", rows)[:, 0]
        return dataclasses.replace(piece, examples=int(examples.sum()))

    def abandon(self) -> None:
        """Ends the wait of `take`; see `Infeed.abandon`."""
        self._infeed.abandon()

    def _filled(self, start: int, steps: int) -> Piece:
        assert self._filler is not None
        if self._filling is None:
            self._filling = self._filler()
        return Piece(
            batches=self._filling,
            start=start,
            stop=start + steps,
            rows=np.zeros(steps, np.int32),
            examples=0,
            position=None,
            steps_left=None,
            host_columns=(),
        )
