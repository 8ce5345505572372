"""A step compiled into a loop, in one of three shapes that compute the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from estimator.loop_shape import UNROLLED_STEPS, LoopShape, ShapeChoice
from estimator.mesh import Placement
from estimator.runtime import Callable as CompiledCallable
from estimator.runtime import RunMetadata, Session
from estimator.steps import Batches, Outputs, Step


class LoopProgram:
    """Runs a step over parts of stacked batches on the device.

    A device loop (`lax.fori_loop`), unrolled chunks and per-step dispatch run the same body:
    the step on batch `index`, its outputs written to position `index - start` of buffers.
    So they give the same numbers, and steps of one dispatch may go through more than one of
    them. No length is static: one compiled program of a shape serves loops of every length.

    Args:
      session: compiles and runs the programs.
      step: one step, see `steps.Step`.
      placement: where carry and outputs lie.
      every_n: steps between those whose `Outputs.every_n` is kept.
      shape: of the loop; None times the shapes on the first steps and keeps the fastest.
      clock: returns seconds; tests pass their own.
    """

    def __init__(
        self,
        session: Session,
        step: Step,
        placement: Placement,
        *,
        every_n: int = 1,
        shape: LoopShape | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._session = session
        self._step = jax.jit(step, inline=True)  # its trace is shared by all that is compiled
        self._placement = placement
        self._every_n = every_n
        self._shape = shape
        self._clock = clock
        self._kinds: dict[Any, tuple[_Programs, ShapeChoice]] = {}

    def prepare(self, carry: Any, constants: Any, batches: Batches) -> None:
        """Compiles, unless that was done, what such arguments run in first. Runs no step.

        Raises:
          TypeError: the step changes the structure, a shape or a dtype of its carry.
        """
        self._prepared(carry, constants, batches)

    def metadata(self, carry: Any, constants: Any, batches: Batches) -> RunMetadata:
        """Returns what the compiler tells about the program that such arguments run in first.

        Compiles it, unless that was done. For a device loop `jax.ShapeDtypeStruct`s with
        shardings will do, even on devices that are known by their topology only.

        Raises:
          TypeError: the step changes the structure, a shape or a dtype of its carry.
        """
        programs, shape = self._prepared(carry, constants, batches)
        return programs.metadata(shape)

    def __call__(
        self,
        carry: Any,
        constants: Any,
        batches: Batches,
        start: int,
        stop: int,
        *,
        global_step: int,
        steps_left: int | None,
    ) -> tuple[Any, Outputs]:
        """Runs the batches `start` to `stop`.

        Args:
          carry: pytree; its memory is taken over (donated).
          constants: pytree that every step reads.
          batches: stacked, `[capacity, batch, ...]`.
          start: first batch to run.
          stop: behind the last one.
          global_step: steps before `start`; decides which are multiples of `every_n`.
          steps_left: steps that the run has still to go, these included; None if unknown.

        Returns:
          The carry after the steps, and the outputs stacked: `every_step` `[capacity, ...]`
          with entry i from batch `start + i`, `every_n` `[capacity // every_n + 2, ...]` with
          entry i from the i-th step that is a multiple of `every_n`.

        Raises:
          TypeError: the step changes the structure, a shape or a dtype of its carry.
        """
        programs, choice = self._for_kind(carry, constants, batches)
        buffers = programs.new_buffers()
        done = start
        while done < stop:
            run = choice.next_run(stop - done, steps_left)
            if run.shape not in programs:
                self._compile(programs, choice, run.shape, (carry, buffers, constants, batches))
            if run.timed:
                jax.block_until_ready(carry)
            started = self._clock()
            carry, buffers = programs.run(
                run.shape, carry, buffers, constants, batches, done, run.steps, start, global_step
            )
            if run.timed:
                jax.block_until_ready(carry)
                choice.timed(run, self._clock() - started)
            else:
                choice.untimed(run)
            done += run.steps
            steps_left = None if steps_left is None else steps_left - run.steps
        return carry, buffers

    def _prepared(
        self, carry: Any, constants: Any, batches: Batches
    ) -> tuple[_Programs, LoopShape]:
        programs, choice = self._for_kind(carry, constants, batches)
        shape = choice.current
        if shape not in programs:
            self._compile(programs, choice, shape, (carry, programs.buffers, constants, batches))
        return programs, shape

    def _for_kind(
        self, carry: Any, constants: Any, batches: Batches
    ) -> tuple[_Programs, ShapeChoice]:
        leaves, structure = jax.tree.flatten(batches)
        key = structure, tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)
        if key not in self._kinds:
            fixed = self._shape
            if fixed is None and jax.process_count() > 1:
                fixed = LoopShape.DEVICE_LOOP  # all processes must run the same program
            programs = _Programs(
                self._session,
                self._step,
                self._placement,
                self._every_n,
                carry,
                constants,
                batches,
            )
            first = LoopShape.DEVICE_LOOP
            if self._placement.on_cpu and programs.convolves:
                # Inside a while loop, XLA:CPU takes many times longer for its gradient.
                first = LoopShape.PER_STEP
            self._kinds[key] = programs, ShapeChoice(fixed=fixed, first=first)
        return self._kinds[key]

    def _compile(
        self, programs: _Programs, choice: ShapeChoice, shape: LoopShape, arguments: Any
    ) -> None:
        started = self._clock()
        programs.compile(shape, *arguments)
        choice.compiled(shape, self._clock() - started)


class _Programs:
    """The compiled programs for one kind of batches (structure, shapes, dtypes, shardings).

    Attributes:
      convolves: whether there is a convolution in the step.
      buffers: what `new_buffers` returns, as `jax.ShapeDtypeStruct`s with shardings.
    """

    def __init__(
        self,
        session: Session,
        step: Any,
        placement: Placement,
        every_n: int,
        carry: Any,
        constants: Any,
        batches: Batches,
    ):
        self._session = session
        self._step = step
        self._every_n = every_n
        self._one_at_a_time = placement.one_program_at_a_time
        self._compiled: dict[LoopShape, CompiledCallable] = {}
        self._take: Any = None
        capacity, batch_size = jax.tree.leaves(batches.features)[0].shape[:2]
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batches)
        traced = step.trace(carry, constants, one)
        new_carry, outputs = traced.out_info
        _check_carry(carry, new_carry)
        self.convolves = "conv_general_dilated" in str(traced.jaxpr)
        # Steps that are not due write to a last slot that nobody reads.
        self._idle_slot = capacity // every_n + 1
        by_batch = placement.for_batch_size(batch_size)

        def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            split = leaf.shape[1:2] == (batch_size,)
            return leaf.update(sharding=by_batch if split else placement.replicated)

        self.buffers = jax.tree.map(
            placed,
            Outputs(
                _stacked(outputs.every_step, capacity),
                _stacked(outputs.every_n, self._idle_slot + 1),
            ),
        )
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.buffers)
        self._out_shardings = (jax.tree.map(lambda _: placement.replicated, carry), shardings)
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
        self, shape: LoopShape, carry: Any, buffers: Any, constants: Any, batches: Batches
    ) -> None:
        """Compiles the program of `shape`."""
        function = {
            LoopShape.DEVICE_LOOP: self._device_loop,
            LoopShape.UNROLLED: self._unrolled,
            LoopShape.PER_STEP: self._one_step,  # on a batch that was taken out before
        }[shape]
        numbers = [np.int32(0)] * (4 if shape is LoopShape.DEVICE_LOOP else 3)
        if shape is LoopShape.PER_STEP:
            # Taken out by a program of its own, so that the step's does not depend on how many
            # batches are stacked: not even the last bit of its numbers does then.
            self._take = self._session.make_callable(_at, (batches, np.int32(0))).run
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
        batches: Batches,
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

    def _device_loop(
        self,
        carry: Any,
        buffers: Any,
        constants: Any,
        batches: Batches,
        begin: Any,
        end: Any,
        start: Any,
        global_step: Any,
    ) -> tuple[Any, Outputs]:
        def body(index: Any, state: tuple[Any, Outputs]) -> tuple[Any, Outputs]:
            batch = _at(batches, index)
            return self._one_step(*state, constants, batch, index, start, global_step)

        return lax.fori_loop(begin, end, body, (carry, buffers))

    def _unrolled(
        self,
        carry: Any,
        buffers: Any,
        constants: Any,
        batches: Batches,
        begin: Any,
        start: Any,
        global_step: Any,
    ) -> tuple[Any, Outputs]:
        for offset in range(UNROLLED_STEPS):
            index = begin + offset
            carry, buffers = self._one_step(
                carry, buffers, constants, _at(batches, index), index, start, global_step
            )
        return carry, buffers

    def _one_step(
        self,
        carry: Any,
        buffers: Any,
        constants: Any,
        batch: Batches,
        index: Any,
        start: Any,
        global_step: Any,
    ) -> tuple[Any, Outputs]:
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


def _stacked(shapes: Any, length: int) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((length, *leaf.shape), leaf.dtype), shapes
    )


def _at(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False), tree)


def _put(buffers: Any, values: Any, index: Any) -> Any:
    return jax.tree.map(
        lambda buffer, value: lax.dynamic_update_index_in_dim(buffer, value, index, 0),
        buffers,
        values,
    )


def _check_carry(before: Any, after: Any) -> None:
    """Refuses a step that changes the structure, a shape or a dtype of its carry."""
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
