"""Training in parts is training at once: state and input go on where the checkpoint left them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import estimator as est
from tests import fakes
from tests.fakes import config, dataset, final_state, mlp, numbered


def make(model_dir: Path, *, batch_size: int = 2, params: Any = None, **settings: Any):
    return est.Estimator(
        mlp,
        model_dir=model_dir,
        config=config(**settings),
        params=params,
        train_batch_size=batch_size,
    )


def shuffled():
    return dataset(50).shuffle(seed=3).repeat()


@pytest.mark.parametrize("fresh", [False, True], ids=["same Estimator", "new Estimator"])
def test_two_hundred_steps_equal_a_hundred_and_a_hundred(tmp_path, fresh):
    def build(name):
        params = {"dropout": 0.3, "optimizer": optax.adam(1e-2)}
        return make(tmp_path / name, batch_size=8, params=params, iterations_per_loop=30)

    whole = final_state(build("whole"), shuffled, steps=200)
    first = build("parts")
    first.train(shuffled, steps=100)
    second = build("parts") if fresh else first
    fakes.assert_equal(final_state(second, shuffled, steps=100), whole)
    fakes.assert_equal(
        {name: whole[name] for name in fakes.saved_variables(second)},
        fakes.saved_variables(second),
    )


@pytest.mark.parametrize("stopped_at", [8, 5])
def test_a_resumed_shuffled_input_keeps_the_order_of_the_uninterrupted_one(tmp_path, stopped_at):
    def three_epochs():
        return dataset(10).shuffle(seed=1).repeat(3)

    ids = {name: fakes.IdLog() for name in ("whole", "first", "second")}
    make(tmp_path / "a", params={"host_call": ids["whole"]}).train(three_epochs)
    parts = tmp_path / "b"
    make(parts, params={"host_call": ids["first"]}).train(three_epochs, max_steps=stopped_at)
    resumed = make(parts, params={"host_call": ids["second"]})
    resumed.train(three_epochs)
    assert ids["second"].steps == list(range(stopped_at + 1, 16))
    assert ids["first"].ids + ids["second"].ids == ids["whole"].ids
    for epoch in range(3):
        seen = ids["whole"].all_ids[10 * epoch : 10 * epoch + 10]
        assert sorted(seen) == list(range(10))


@pytest.mark.parametrize(
    "open_input",
    [
        lambda: lambda: fakes.batches(40, 2),
        lambda: fakes.batches(40, 2),
        lambda: list(fakes.batches(40, 2)),
    ],
    ids=["function", "generator", "list"],
)
def test_batches_that_were_read_ahead_are_read_again_after_a_resume(tmp_path, open_input):
    ids = fakes.IdLog()
    estimator = make(tmp_path, params={"host_call": ids}, iterations_per_loop=4)
    for steps in (3, 1, 6, None):
        estimator.train(open_input, steps=steps)
    assert ids.steps == list(range(1, 21))
    assert ids.ids == [[2 * i, 2 * i + 1] for i in range(20)]


def test_a_hook_that_stops_early_loses_no_batch(tmp_path):
    ids = fakes.IdLog()
    estimator = make(tmp_path, params={"host_call": ids}, iterations_per_loop=4)
    estimator.train(lambda: numbered(40), hooks=[est.hooks.StopAtStepHook(num_steps=7)])
    assert fakes.latest_step(estimator) == 7
    estimator.train(lambda: numbered(40))
    assert ids.all_ids == list(range(40))


def test_an_input_that_was_at_its_end_starts_anew(tmp_path, caplog):
    ids = fakes.IdLog()
    estimator = make(tmp_path, params={"host_call": ids}, iterations_per_loop=4)
    estimator.train(lambda: numbered(9))
    with caplog.at_level(logging.INFO, logger="estimator"):
        estimator.train(lambda: numbered(9))
    assert "starts anew" in caplog.text
    assert ids.steps == list(range(1, 11))
    rows = [example for step in ids.ids[5:9] for example in step]
    assert rows == list(range(8))


def test_another_input_starts_at_its_beginning_with_a_warning(tmp_path, caplog):
    ids = fakes.IdLog()
    estimator = make(tmp_path, params={"host_call": ids})
    estimator.train(lambda: dataset(10).repeat(), steps=3)
    with caplog.at_level(logging.WARNING, logger="estimator"):
        estimator.train(lambda: dataset(12).repeat(), steps=1)
    assert "num_examples" in caplog.text
    assert ids.ids[-1] == [0, 1]


def test_a_restarted_input_begins_anew_while_the_state_goes_on(tmp_path):
    ids = fakes.IdLog()
    make(tmp_path, params={"host_call": ids}).train(lambda: dataset(10).repeat(), steps=3)
    again = make(tmp_path, params={"host_call": ids}, input_resume="restart")
    again.train(lambda: dataset(10).repeat(), steps=2)
    assert ids.steps == [1, 2, 3, 4, 5]
    assert ids.ids[3:] == [[0, 1], [2, 3]]


def test_another_batch_size_goes_on_at_the_next_example(tmp_path):
    first, second = fakes.IdLog(), fakes.IdLog()
    make(tmp_path, params={"host_call": first}).train(shuffled, steps=3)
    make(tmp_path, batch_size=5, params={"host_call": second}).train(shuffled, steps=9)
    order = [np.random.default_rng([3, epoch]).permutation(50) for epoch in range(2)]
    assert first.all_ids + second.all_ids == np.concatenate(order)[:51].tolist()


def iterators_of(size):
    return lambda: fakes.batches(40, size)


def test_another_batch_size_is_refused_where_batches_are_counted(tmp_path, compilations):
    make(tmp_path).train(iterators_of(2), steps=3)
    before = compilations.count
    with pytest.raises(ValueError, match=r"batches of 2 examples.*in batches of 4") as caught:
        make(tmp_path, batch_size=4).train(iterators_of(4), steps=1)
    assert compilations.count == before
    assert "input_resume='restart'" in caught.value.__notes__[0]
    make(tmp_path, batch_size=4, input_resume="restart").train(iterators_of(4), steps=1)
    assert fakes.latest_step(make(tmp_path)) == 4


@pytest.mark.parametrize(
    "input_fn",
    [
        iterators_of(2),
        lambda: iterators_of(2),
        lambda: list(fakes.batches(40, 2)),
        lambda: est.input_pipeline.Dataset.from_generator(lambda: fakes.batches(40, 1)).batch(2),
    ],
    ids=["generator", "function", "list", "generated dataset"],
)
def test_what_is_resumed_by_reading_is_refused_where_resume_must_be_exact(
    tmp_path, nothing_compiled, input_fn
):
    with pytest.raises(ValueError, match=r"require_exact_resume=True.*no position"):
        make(tmp_path, require_exact_resume=True).train(input_fn, steps=1)


def test_where_resume_must_be_exact_another_input_is_an_error(tmp_path):
    ids = fakes.IdLog()
    for _ in range(2):
        exact = make(tmp_path, params={"host_call": ids}, require_exact_resume=True)
        exact.train(shuffled, steps=3)
    assert ids.all_ids == np.random.default_rng([3, 0]).permutation(50)[:12].tolist()
    with pytest.raises(est.input_pipeline.PositionError, match="num_examples") as caught:
        exact.train(lambda: dataset(12).repeat(), steps=1)
    assert "restart" in caught.value.__notes__[0]


def test_a_generator_that_was_used_before_is_refused_with_the_way_out(tmp_path):
    batches = fakes.batches(40, 2)
    make(tmp_path).train(lambda: batches, steps=3)
    with pytest.raises(ValueError, match=r"generator that has been read.*new one in each call"):
        make(tmp_path).train(lambda: batches, steps=3)


OPTIMIZERS = {
    "momentum": lambda: optax.sgd(0.02, momentum=0.9),
    "clipped adamw with a schedule": lambda: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(0.1, 10))
    ),
    "injected hyperparameters": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.01),
    "several steps an update": lambda: optax.MultiSteps(optax.adam(0.01), every_k_schedule=3),
    "one for kernels, one for biases": lambda: optax.multi_transform(
        {"kernel": optax.adam(0.01), "bias": optax.sgd(0.01)},
        lambda params: jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key, params),
    ),
    "some parameters masked": lambda: optax.masked(
        optax.adam(0.01),
        lambda params: jax.tree_util.tree_map_with_path(
            lambda path, _: path[-1].key == "kernel", params
        ),
    ),
    "noise": lambda: optax.chain(optax.add_noise(0.01, 0.55, jax.random.key(0)), optax.sgd(0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_every_optimizer_comes_back(tmp_path, name):
    def build(folder):
        params = {"optimizer": OPTIMIZERS[name]()}
        return make(tmp_path / folder, params=params, iterations_per_loop=5)

    whole = final_state(build("whole"), shuffled, steps=8)
    build("parts").train(shuffled, steps=4)
    fakes.assert_equal(final_state(build("parts"), shuffled, steps=4), whole)


def test_a_checkpoint_of_one_device_goes_on_on_four(tmp_path):
    def build(folder, devices):
        params = {"optimizer": optax.adam(1e-2)}
        return make(tmp_path / folder, batch_size=4, params=params, devices=devices)

    whole = final_state(build("whole", 1), shuffled, steps=10)
    build("parts", 1).train(shuffled, steps=5)
    fakes.assert_close(final_state(build("parts", 4), shuffled, steps=5), whole, 1e-5)
    build("back", 4).train(shuffled, steps=5)
    fakes.assert_close(final_state(build("back", 1), shuffled, steps=5), whole, 1e-5)


def test_random_numbers_depend_on_seed_and_step_only(tmp_path):
    def noisy(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, {}, context)
        noise = jax.random.normal(context.rng)
        record = params["record"]
        return est.EstimatorSpec(
            mode,
            loss=spec.loss,
            optimizer=params["optimizer"],
            host_call=(lambda noise, step: record.append((step, float(noise))), [noise]),
        )

    def run(name: str, parts: tuple[int, ...] = (9,), **settings: Any) -> list[Any]:
        record: list[Any] = []
        for part in parts:
            estimator = est.Estimator(
                noisy,
                tmp_path / name,
                config(**settings),
                {"record": record, "optimizer": optax.sgd(0.1)},
                train_batch_size=4,
            )
            estimator.train(lambda: dataset(12).repeat(), steps=part)
        return record

    expected = run("reference", iterations_per_loop=1)
    assert [step for step, _ in expected] == list(range(1, 10))
    assert len({noise for _, noise in expected}) == 9
    assert run("loops", iterations_per_loop=4) == expected
    assert run("parts", parts=(2, 7)) == expected
    assert run("devices", devices=2) == expected
    assert not {noise for _, noise in run("seed", seed=1)} & {noise for _, noise in expected}


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**32 - 1, -1, 2**40])
def test_every_int_is_a_seed_or_is_refused_when_the_config_is_made(tmp_path, seed):
    try:
        settings = config(seed=seed)
    except ValueError as error:
        assert "seed" in str(error)
        return
    estimator = est.Estimator(mlp, tmp_path, settings, {"dropout": 0.5}, train_batch_size=2)
    estimator.train(lambda: numbered(4))
    assert fakes.latest_step(estimator) == 2


def test_initial_parameters_depend_on_the_seed_and_not_on_the_devices(tmp_path):
    import flax.linen as nn

    def model_fn(features, labels, mode):
        outputs = nn.Dense(1)(features["x"])[:, 0]
        return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.sgd(0.0))

    def initial(name: str, **settings: Any) -> np.ndarray:
        estimator = est.Estimator(model_fn, tmp_path / name, config(**settings), train_batch_size=8)
        estimator.train(lambda: numbered(8))
        return estimator.get_variable_value("params/Dense_0/kernel")

    expected = initial("reference")
    np.testing.assert_array_equal(initial("again"), expected)
    np.testing.assert_array_equal(initial("devices", devices=8), expected)
    assert not np.array_equal(initial("seed", seed=7), expected)
