"""The thread that takes what leaves the devices, and gives it to the host's functions in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from estimator.errors import Rendezvous
from input_pipeline import ClosableQueue

_IN_FLIGHT = 2


class Outfeed:
    """Delivers the outputs of dispatches on a thread, in order, as numpy arrays.

    Args:
      rendezvous: owns the thread, and carries its errors.
      name: of the thread.
      deliver: called as `deliver(arrays, tag)` for each `put`.
      read: gives the numpy array of a device array.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        name: str,
        deliver: Callable[[Any, Any], None],
        *,
        read: Callable[[jax.Array], np.ndarray] = np.asarray,
    ) -> None:
        self._deliver = deliver
        self._read = read
        self._queue: ClosableQueue[tuple[Any, Any]] = ClosableQueue(_IN_FLIGHT, name=name)
        self._delivered: ClosableQueue[None] = ClosableQueue(1, name=f"{name} delivered")
        rendezvous.owns(self._queue)
        rendezvous.on_close(self._delivered.close)
        rendezvous.spawn(name, self._pump)

    def put(self, arrays: Any, tag: Any) -> None:
        """Hands over device arrays as soon as their computation is dispatched.

        Their copy to the host starts at once. Waits while two earlier ones are not yet
        delivered, so that a slow host function slows the loop down instead of filling the memory.
        """
        for leaf in jax.tree.leaves(arrays):
            leaf.copy_to_host_async()
        self._queue.put((arrays, tag))

    def drain(self) -> None:
        """Waits until all that was put is delivered. Nothing may be put afterwards.

        Raises:
          Whatever ended the run meanwhile, as itself.
        """
        self._queue.finish()
        self._delivered.get()

    def _pump(self) -> None:
        while (item := self._queue.get()) is not None:
            arrays, tag = item
            self._deliver(jax.tree.map(self._read, arrays), tag)
        self._delivered.finish()
