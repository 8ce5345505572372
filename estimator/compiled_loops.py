"""The compiled programs of a loop over one kind of batches."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimator.batches import Stacked
from estimator.loop_body import LoopBody, batch_at, check_carry
from estimator.loop_shape import UNROLLED_STEPS, LoopShape
from estimator.mesh import Placement
from estimator.runtime import Callable, RunMetadata, Session
from estimator.steps import Outputs


class CompiledLoops:
    """A step compiled into loops over one kind of batches (structure, shapes, dtypes, shardings).

    Attributes:
      convolves: whether there is a convolution in the step.
      fingerprint: the same for loops over the same step, as long and on the same devices.
      buffers: what `new_buffers` returns, as `jax.ShapeDtypeStruct`s with shardings.

    Args:
      session: compiles and runs the programs.
      step: one step, jitted, so that its trace is shared by all that is compiled.
      placement: where carry and outputs lie.
      every_n: steps between those whose `Outputs.every_n` is kept.
      gathers: whether outputs with an entry for each example leave whole on every device.
      carry: arrays, or shapes with shardings, of the arguments to come.
      constants: likewise.
      batches: likewise.

    Raises:
      TypeError: the step changes the structure, a shape or a dtype of its carry.
    """

    def __init__(
        self,
        session: Session,
        step: Any,
        placement: Placement,
        *,
        every_n: int,
        gathers: bool,
        carry: Any,
        constants: Any,
        batches: Stacked,
    ):
        self._session = session
        self._one_at_a_time = placement.one_program_at_a_time
        self._compiled: dict[LoopShape, Callable] = {}
        self._take: Any = None
        capacity, batch_size = batches.shape
        one = jax.eval_shape(batch_at, batches, np.int32(0))
        traced = step.trace(carry, constants, one)
        new_carry, outputs = traced.out_info
        check_carry(carry, new_carry)
        text = str(traced.jaxpr)
        self.convolves = "conv_general_dilated" in text
        # What is printed as an address is a function, whose jaxpr is printed, too.
        described = re.sub("0x[0-9a-f]+", "", f"{text} {capacity} {placement.mesh}")
        self.fingerprint = hashlib.sha256(described.encode()).hexdigest()
        self._body = LoopBody(step, every_n=every_n, capacity=capacity)
        by_batch = placement.replicated if gathers else placement.for_batch_size(batch_size)

        def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            split = leaf.shape[1:2] == (batch_size,)
            return leaf.update(sharding=by_batch if split else placement.replicated)

        self.buffers = jax.tree.map(placed, self._body.buffers(outputs))
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.buffers)
        self._out_shardings = (jax.tree.map(lambda leaf: leaf.sharding, carry), shardings)
        self.new_buffers = session.make_callable(
            lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.buffers),
            (),
            out_shardings=shardings,
        ).run

    def __contains__(self, shape: LoopShape) -> bool:
        return shape in self._compiled

    def metadata(self, shape: LoopShape) -> RunMetadata:
        """Returns what the compiler tells about the program of `shape`."""
        return self._compiled[shape].metadata()

    def compile(
        self, shape: LoopShape, carry: Any, buffers: Any, constants: Any, batches: Stacked
    ) -> None:
        """Compiles the program of `shape`."""
        function = {
            LoopShape.DEVICE_LOOP: self._body.device_loop,
            LoopShape.UNROLLED: self._body.unrolled,
            LoopShape.PER_STEP: self._body.one_step,  # on a batch that was taken out before
        }[shape]
        numbers = [np.int32(0)] * (4 if shape is LoopShape.DEVICE_LOOP else 3)
        if shape is LoopShape.PER_STEP:
            # Taken out by a program of its own, so that the step's does not depend on how many
            # batches are stacked: not even the last bit of its numbers does then.
            self._take = self._session.make_callable(batch_at, (batches, np.int32(0))).run
            batches = self._take(batches, np.int32(0))
        self._compiled[shape] = self._session.make_callable(
            function,
            (carry, buffers, constants, batches, *numbers),
            donate=(0, 1),
            out_shardings=self._out_shardings,
        )
        if shape is LoopShape.UNROLLED and LoopShape.PER_STEP not in self._compiled:
            self.compile(LoopShape.PER_STEP, carry, buffers, constants, batches)  # the remainder

    def run(
        self,
        shape: LoopShape,
        carry: Any,
        buffers: Any,
        constants: Any,
        batches: Stacked,
        begin: int,
        steps: int,
        start: int,
        global_step: int,
    ) -> tuple[Any, Outputs]:
        """Runs `steps` batches from `begin`, with a compiled shape."""
        program = self._compiled[shape].run
        origin, before = np.int32(start), np.int32(global_step)
        if shape is LoopShape.DEVICE_LOOP:
            end = np.int32(begin + steps)
            return self._started(
                program(carry, buffers, constants, batches, np.int32(begin), end, origin, before)
            )
        end = begin + steps
        if shape is LoopShape.UNROLLED:
            whole = begin + steps // UNROLLED_STEPS * UNROLLED_STEPS
            for index in np.arange(begin, whole, UNROLLED_STEPS, dtype=np.int32):
                carry, buffers = self._started(
                    program(carry, buffers, constants, batches, index, origin, before)
                )
            program, begin = self._compiled[LoopShape.PER_STEP].run, whole
        for index in np.arange(begin, end, dtype=np.int32):
            batch = self._take(batches, index)
            carry, buffers = self._started(
                program(carry, buffers, constants, batch, index, origin, before)
            )
        return carry, buffers

    def _started(self, results: tuple[Any, Outputs]) -> tuple[Any, Outputs]:
        """Returns the results of a program that has just been started: ready ones where no
        other may start beside it."""
        return jax.block_until_ready(results) if self._one_at_a_time else results
