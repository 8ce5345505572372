"""A step compiled into a loop, in one of three shapes that compute the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import jax

from estimator.batches import Stacked
from estimator.compiled_loops import CompiledLoops
from estimator.loop_shape import LoopShape, ShapeChoice
from estimator.mesh import Placement
from estimator.runtime import RunMetadata, Session
from estimator.steps import Outputs, Step

logger = logging.getLogger(__name__)

_fastest: dict[str, LoopShape] = {}
"""By fingerprint, the shapes that were measured to be the fastest in this process."""


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
      gathers: whether outputs with an entry for each example leave whole on every device; else
        they are split over the replicas.
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
        gathers: bool = False,
        shape: LoopShape | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._session = session
        self._step = jax.jit(step, inline=True)  # its trace is shared by all that is compiled
        self._placement = placement
        self._every_n = every_n
        self._gathers = gathers
        self._shape = shape
        self._clock = clock
        self._kinds: dict[Any, tuple[CompiledLoops, ShapeChoice]] = {}

    def prepare(self, carry: Any, constants: Any, batches: Stacked) -> None:
        """Compiles, unless that was done, what such arguments run in first. Runs no step.

        Raises:
          TypeError: the step changes the structure, a shape or a dtype of its carry.
        """
        self._prepared(carry, constants, batches)

    def metadata(self, carry: Any, constants: Any, batches: Stacked) -> RunMetadata:
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
        batches: Stacked,
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
          batches: a stack of them.
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
        if choice.measures and choice.settled is not None:
            _fastest.setdefault(programs.fingerprint, choice.settled)
        return carry, buffers

    def _prepared(
        self, carry: Any, constants: Any, batches: Stacked
    ) -> tuple[CompiledLoops, LoopShape]:
        programs, choice = self._for_kind(carry, constants, batches)
        shape = choice.current
        if shape not in programs:
            self._compile(programs, choice, shape, (carry, programs.buffers, constants, batches))
        return programs, shape

    def _for_kind(
        self, carry: Any, constants: Any, batches: Stacked
    ) -> tuple[CompiledLoops, ShapeChoice]:
        leaves, structure = jax.tree.flatten(batches)
        key = structure, tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)
        if key not in self._kinds:
            fixed = self._shape
            programs = CompiledLoops(
                self._session,
                self._step,
                self._placement,
                every_n=self._every_n,
                gathers=self._gathers,
                carry=carry,
                constants=constants,
                batches=batches,
            )
            first = LoopShape.DEVICE_LOOP
            if self._placement.on_cpu and programs.convolves:
                # Inside a while loop, XLA:CPU takes many times longer for its gradient.
                first = LoopShape.PER_STEP
            if fixed is None and self._placement.num_processes > 1:
                fixed = first  # all processes must run the same program, whatever their clocks say
            elif fixed is None and (known := _fastest.get(programs.fingerprint)):
                logger.info("Loop shape: %s, which this program was fastest in before.", known)
                fixed = known
            self._kinds[key] = programs, ShapeChoice(fixed=fixed, first=first)
        return self._kinds[key]

    def _compile(
        self, programs: CompiledLoops, choice: ShapeChoice, shape: LoopShape, arguments: Any
    ) -> None:
        started = self._clock()
        programs.compile(shape, *arguments)
        choice.compiled(shape, self._clock() - started)
