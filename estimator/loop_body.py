"""What a loop is made of: pure functions of batches, in each of its shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from estimator.batches import Batches, Stacked
from estimator.loop_shape import UNROLLED_STEPS
from estimator.steps import Outputs, Step


class LoopBody:
    """A step on batch `index` of a stack, with its outputs written to position `index - start`
    of buffers; and the same again and again, as functions that are compiled.

    Args:
      step: one step, see `steps.Step`.
      every_n: steps between those whose `Outputs.every_n` is kept.
      capacity: batches in the stack.
    """

    def __init__(self, step: Step, *, every_n: int, capacity: int):
        self._step = step
        self._every_n = every_n
        self._capacity = capacity
        # Steps that are not due write to a last slot that nobody reads.
        self._idle_slot = capacity // every_n + 1

    def buffers(self, outputs: Outputs) -> Outputs:
        """Returns the shapes of buffers for such outputs of one step."""
        return Outputs(
            _stacked(outputs.every_step, self._capacity),
            _stacked(outputs.every_n, self._idle_slot + 1),
        )

    def device_loop(
        self,
        carry: Any,
        buffers: Outputs,
        constants: Any,
        batches: Stacked,
        begin: Any,
        end: Any,
        start: Any,
        global_step: Any,
    ) -> tuple[Any, Outputs]:
        """Runs the batches `begin` to `end`: one program for all lengths."""

        def body(index: Any, state: tuple[Any, Outputs]) -> tuple[Any, Outputs]:
            batch = batches.at(index)
            return self.one_step(*state, constants, batch, index, start, global_step)

        return lax.fori_loop(begin, end, body, (carry, buffers))

    def unrolled(
        self,
        carry: Any,
        buffers: Outputs,
        constants: Any,
        batches: Stacked,
        begin: Any,
        start: Any,
        global_step: Any,
    ) -> tuple[Any, Outputs]:
        """Runs `UNROLLED_STEPS` batches from `begin`."""
        for offset in range(UNROLLED_STEPS):
            index = begin + offset
            carry, buffers = self.one_step(
                carry, buffers, constants, batches.at(index), index, start, global_step
            )
        return carry, buffers

    def one_step(
        self,
        carry: Any,
        buffers: Outputs,
        constants: Any,
        batch: Batches,
        index: Any,
        start: Any,
        global_step: Any,
    ) -> tuple[Any, Outputs]:
        """Runs one batch, which was batch `index` of the stack."""
        carry, outputs = self._step(carry, constants, batch)
        position = index - start
        before, after = global_step + position, global_step + position + 1
        slot = jnp.where(
            after % self._every_n == 0,
            before // self._every_n - global_step // self._every_n,
            self._idle_slot,
        )
        return carry, Outputs(
            _put(buffers.every_step, outputs.every_step, position),
            _put(buffers.every_n, outputs.every_n, slot),
        )


def batch_at(batches: Stacked, index: Any) -> Batches:
    """Returns batch `index` of a stack."""
    return batches.at(index)


def check_carry(before: Any, after: Any) -> None:
    """Refuses a step that changes the structure, a shape or a dtype of its carry.

    Raises:
      TypeError: it does.
    """
    old = jax.tree_util.tree_leaves_with_path(before)
    new = jax.tree_util.tree_leaves_with_path(after)
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise TypeError(
            "A step changed the structure of its state from "
            f"{[jax.tree_util.keystr(path) for path, _ in old]} to "
            f"{[jax.tree_util.keystr(path) for path, _ in new]}."
        )
    for (path, was), (_, now) in zip(old, new, strict=True):
        if was.shape != now.shape or was.dtype != now.dtype:
            raise TypeError(
                f"A step changed {jax.tree_util.keystr(path)} of its state from "
                f"{was.dtype}{list(was.shape)} to {now.dtype}{list(now.shape)}. State must keep "
                "its shape and dtype: cast in the model or the optimizer."
            )


def _stacked(shapes: Any, length: int) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((length, *leaf.shape), leaf.dtype), shapes
    )


def _put(buffers: Any, values: Any, index: Any) -> Any:
    return jax.tree.map(
        lambda buffer, value: lax.dynamic_update_index_in_dim(buffer, value, index, 0),
        buffers,
        values,
    )
