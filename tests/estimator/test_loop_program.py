"""A loop gives what a plain Python loop gives, in each of its shapes, for every length."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimator as est
from estimator import loop_program, programs
from estimator.batches import Batches
from estimator.device_config import DeviceConfig
from estimator.loop_program import LoopProgram
from estimator.loop_shape import LoopShape
from estimator.mesh import Placement
from estimator.runtime import Session
from estimator.steps import Outputs
from tests import fakes

CAPACITY, ROWS = 25, 4
DATA = np.arange(CAPACITY * ROWS, dtype=np.float32).reshape(CAPACITY, ROWS)


@contextlib.contextmanager
def compilations():
    """Yields a list that gets an entry for every program that is compiled in the body."""
    events = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def step(carry, constants, batch):
    """Order matters, the constants matter, and every row goes out."""
    carry = carry * constants + batch.features.sum()
    return carry, Outputs({"carry": carry, "rows": batch.features * 2}, (carry + 1,))


def in_python(carry, start, stop):
    carries = []
    for batch in DATA[start:stop]:
        carry = np.float32(carry * np.float32(0.5) + batch.sum())
        carries.append(carry)
    return carries


def placement(devices=1):
    return Placement.make(DeviceConfig(devices=jax.devices()[:devices]))


def run(program, place, start, stop, carry=1.0, global_step=0, steps_left=None):
    batches = jax.device_put(Batches(DATA, None, None), place.for_batch_size(ROWS))
    carry = jax.device_put(np.float32(carry), place.replicated)
    constants = jax.device_put(np.float32(0.5), place.replicated)
    return program(
        carry, constants, batches, start, stop, global_step=global_step, steps_left=steps_left
    )


SHAPES = [*LoopShape, None]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("devices", [1, 4])
def test_every_part_of_a_stack_gives_what_a_python_loop_gives(shape, devices):
    place = placement(devices)
    program = LoopProgram(Session(), step, place, shape=shape)

    for start, stop in [(0, 25), (0, 1), (24, 25), (3, 9), (5, 15), (2, 24)]:
        carry, outputs = run(program, place, start, stop)

        wanted = in_python(1.0, start, stop)
        np.testing.assert_allclose(float(carry), wanted[-1], rtol=1e-6)
        got = np.asarray(outputs.every_step["carry"])
        np.testing.assert_allclose(got[: stop - start], wanted, rtol=1e-6)
        rows = np.asarray(outputs.every_step["rows"])
        np.testing.assert_array_equal(rows[: stop - start], DATA[start:stop] * 2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("every_n", [1, 3, 100])
def test_outputs_of_every_nth_step_are_those_of_multiples(shape, every_n):
    place = placement()
    program = LoopProgram(Session(), step, place, every_n=every_n, shape=shape)

    for (start, stop), before in itertools.product([(0, 25), (4, 6), (6, 19)], [0, 7, 90]):
        _, outputs = run(program, place, start, stop, global_step=before)

        steps = range(before + 1, before + stop - start + 1)
        carries = dict(zip(steps, in_python(1.0, start, stop), strict=True))
        wanted = [carry + 1 for number, carry in carries.items() if number % every_n == 0]
        got = np.asarray(outputs.every_n[0])[: len(wanted)]
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("shape", LoopShape)
def test_once_compiled_it_serves_every_length(shape):
    place = placement()
    program = LoopProgram(Session(), step, place, shape=shape)
    run(program, place, 0, 25)

    with compilations() as compiled:
        for start, stop in [(0, 1), (3, 24), (10, 20), (24, 25)]:
            run(program, place, start, stop, global_step=start)

    assert compiled == []


def test_the_device_loop_compiles_from_shapes_alone():
    place = placement(4)
    program = LoopProgram(Session(), step, place, shape=LoopShape.DEVICE_LOOP)
    scalar = jax.ShapeDtypeStruct((), np.float32, sharding=place.replicated)
    data = jax.ShapeDtypeStruct(DATA.shape, DATA.dtype, sharding=place.for_batch_size(ROWS))

    metadata = program.metadata(scalar, scalar, Batches(data, None, None))

    assert " while(" in metadata.hlo_text
    with compilations() as compiled:
        carry, _ = run(program, place, 0, 25)  # by the very program
    assert compiled == []
    np.testing.assert_allclose(float(carry), in_python(1.0, 0, 25)[-1], rtol=1e-6)


@pytest.mark.parametrize("shape", LoopShape)
def test_the_carry_is_taken_over(shape):
    place = placement()
    program = LoopProgram(Session(), step, place, shape=shape)
    carry = jax.device_put(np.float32(1.0), place.replicated)
    batches = jax.device_put(Batches(DATA, None, None), place.for_batch_size(ROWS))

    program(carry, np.float32(0.5), batches, 0, 25, global_step=0, steps_left=None)

    assert carry.is_deleted()


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_of_one_loop_outlive_the_next(shape):
    place = placement()
    program = LoopProgram(Session(), step, place, shape=shape)

    _, first = run(program, place, 0, 20)
    before = np.asarray(first.every_step["carry"]).copy()
    run(program, place, 20, 25, carry=7.0)

    np.testing.assert_array_equal(np.asarray(first.every_step["carry"]), before)


@pytest.mark.parametrize(
    "changed, words",
    [
        (lambda carry: carry.astype(jnp.bfloat16), "float32.* to bfloat16"),
        (lambda carry: carry[None], r"float32\[\] to float32\[1\]"),
        (lambda carry: {"carry": carry}, "changed the structure"),
    ],
)
def test_a_step_that_changes_the_kind_of_its_state_is_refused(changed, words):
    def changing(carry, constants, batch):
        return changed(carry), Outputs(carry)

    place = placement()
    with pytest.raises(TypeError, match=words):
        run(LoopProgram(Session(), changing, place), place, 0, 2)


@pytest.mark.parametrize("shape", LoopShape)
def test_on_several_cpu_devices_a_program_has_ended_before_the_next_may_start(shape):
    # XLA:CPU aborts the process when programs with collectives pile up on its threads.
    def slow(carry, constants, batch):
        product = jnp.full((400, 400), carry)
        for _ in range(10):
            product = jnp.tanh(product @ product)
        return product.mean() + batch.features.sum(), Outputs({}, {})

    carry, _ = run(LoopProgram(Session(), slow, placement(4), shape=shape), placement(4), 0, 12)

    assert carry.is_ready()


@pytest.mark.parametrize("convolves", [True, False])
def test_on_cpu_a_step_with_a_convolution_begins_outside_a_device_loop(convolves):
    def smooth(carry, constants, batch):
        row = jnp.convolve(batch.features, jnp.ones(3)) if convolves else batch.features
        return carry + row.sum(), Outputs({}, {})

    with Session() as session:
        run(LoopProgram(session, smooth, placement()), placement(), 0, 12)
        runs = session.counters().runs

    # Per-step dispatch takes out each batch and runs a program on it.
    assert runs >= 2 * 12 if convolves else runs < 12


def test_what_was_fastest_is_remembered_for_the_same_program(monkeypatch, caplog):
    monkeypatch.setattr(loop_program, "_fastest", {})
    caplog.set_level(logging.INFO, logger="estimator")

    def settled(step, **options):
        ticks = itertools.count()
        program = LoopProgram(
            Session(), step, placement(), clock=lambda: next(ticks) * 0.02, **options
        )
        caplog.clear()
        for _ in range(4):
            run(program, placement(), 0, 25, steps_left=10**6)
        return [record.getMessage() for record in caplog.records]

    def other(carry, constants, batch):
        return carry + batch.features.max(), Outputs({"carry": carry, "rows": batch.features})

    assert len(settled(step)) == 2  # two shapes have challenged the first
    (message,) = settled(step)
    assert "was fastest in before" in message
    assert len(settled(other)) == 2
    assert settled(step, shape=LoopShape.UNROLLED) == []


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_evaluation_and_prediction_choose_too_and_give_the_same(
    method, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(loop_program, "_fastest", {})
    ticks = itertools.count()
    timed = functools.partial(LoopProgram, clock=lambda: next(ticks))
    monkeypatch.setattr(programs, "LoopProgram", timed)
    caplog.set_level(logging.INFO, logger="estimator")

    def results(shape):
        model = est.Estimator(
            fakes.mlp,
            tmp_path,
            fakes.config(loop_shape=shape, iterations_per_loop=100),
            eval_batch_size=2,
            predict_batch_size=2,
        )
        caplog.clear()
        found = getattr(model, method)(lambda: fakes.dataset(800))
        return found if method == "evaluate" else [row["output"] for row in found]

    chosen = results("auto")
    choices = [text for text in caplog.messages if text.startswith("Loop shape")]
    assert len(choices) == 2  # two shapes have challenged the first
    assert chosen == results("device_loop")
