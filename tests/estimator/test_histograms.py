"""Histograms of parameters and gradients: of arrays, and in training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from estimator.histograms import BINS, read, take_if
from tests.events import scalars_in, values_in
from tests.fakes import assert_equal, config, dataset, final_state, mlp, named, numbered

RATE = 0.05  # of mlp's own optimizer


def of_tree(tree, due=True):
    taken = jax.jit(lambda due, tree: take_if(due, {"x": tree}))(due, tree)
    return read(jax.device_get(taken), tree)


@pytest.mark.parametrize("shape", [(1,), (1000,), (7, 11, 3), ()])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_array_is_counted_as_numpy_counts_it(shape, dtype):
    array = jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)
    [(name, histogram)] = of_tree({"w": array}).items()

    numbers = np.asarray(array, np.float32)
    least, most = numbers.min(), numbers.max()
    fractions = np.arange(BINS + 1, dtype=np.float32) / np.float32(BINS)
    edges = least * (1 - fractions) + most * fractions
    expected, _ = np.histogram(numbers, edges) if least < most else ([0] * 29 + [1], None)
    assert name == "x/w"
    np.testing.assert_allclose(histogram.counts, expected, atol=1)  # rounding at an edge
    assert histogram.counts.sum() == numbers.size
    assert (histogram.minimum, histogram.maximum) == (least, most)
    assert histogram.total == pytest.approx(numbers.sum(), abs=1e-3)
    assert histogram.squares == pytest.approx((numbers**2).sum(), rel=1e-5)
    assert histogram.norm == pytest.approx(np.linalg.norm(numbers.ravel()), rel=1e-5)
    np.testing.assert_allclose(histogram.upper_edges, edges[1:], rtol=1e-3, atol=1e-6)


def test_numbers_that_are_not_finite_are_counted_apart():
    histogram = of_tree([jnp.array([np.nan, 1.0, np.inf, 3.0, -np.inf, 3.0])])["x/0"]
    assert histogram.non_finite == 3
    assert (histogram.minimum, histogram.maximum, histogram.total) == (1.0, 3.0, 7.0)
    assert histogram.counts[0] == 1 and histogram.counts[-1] == 2


def test_an_array_without_a_finite_number_is_empty():
    histogram = of_tree([jnp.array([np.nan, np.inf])])["x/0"]
    assert (histogram.non_finite, histogram.counts.sum(), histogram.norm) == (2, 0, 0)


def test_the_widest_range_there_is_does_not_overflow():
    big = np.finfo(np.float32).max
    histogram = of_tree([jnp.array([-big, 0.0, big])])["x/0"]
    assert histogram.counts.sum() == 3
    assert histogram.counts[0] == 1 and histogram.counts[-1] == 1


def test_what_is_empty_or_no_float_is_left_out():
    tree = {"a": jnp.zeros(3), "empty": jnp.zeros((0, 2)), "count": jnp.arange(3)}
    assert list(of_tree(tree)) == ["x/a"]
    assert of_tree({"count": jnp.arange(3)}) == {}


def test_nothing_is_taken_when_it_is_not_due():
    histogram = of_tree({"a": jnp.ones(3)}, due=False)["x/a"]
    assert histogram.counts.sum() == 0


# In training


def trained(folder, *, rows=40, batch=4, hooks=(), **settings):
    """Trains mlp on `rows`; returns the histograms by step and the final state."""
    found = {}

    def look(view):
        found.update(view.histograms)

    estimator = est.Estimator(
        mlp, folder, config(**{"iterations_per_loop": 4, **settings}), train_batch_size=batch
    )
    hook = est.hooks.LambdaHook(after_loop=look)
    state = final_state(estimator, lambda: dataset(rows), hooks=[hook, *hooks])
    return found, state


def statistics(histograms):
    """Returns what histograms say, step and name in one name."""
    return {
        f"{step}/{name}": np.concatenate([[h.minimum, h.maximum, h.total, h.squares], h.counts])
        for step, by_name in histograms.items()
        for name, h in by_name.items()
    }


def test_they_are_of_the_gradients_that_made_a_step_and_the_parameters_after_it(tmp_path):
    params = {}

    def keep(view):
        params[view.step] = named(view.state().params)

    histograms, _ = trained(
        tmp_path,
        iterations_per_loop=1,
        save_histograms_steps=3,
        hooks=[est.hooks.LambdaHook(after_loop=keep)],
    )

    assert list(histograms) == [3, 6, 9]
    for step, by_name in histograms.items():
        assert len(by_name) == 2 * len(params[step])
        for name, after in params[step].items():
            kept = by_name[f"parameters/{name}"]
            assert (kept.minimum, kept.maximum) == (after.min(), after.max())
            assert kept.norm == pytest.approx(np.linalg.norm(after.ravel()), rel=1e-5)
            gradient = (params[step - 1][name] - after) / RATE  # the optimizer is plain SGD
            assert by_name[f"gradients/{name}"].norm == pytest.approx(
                np.linalg.norm(gradient.ravel()), rel=1e-3
            )


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The histograms and the final state of ten steps that take histograms of every third."""
    return trained(tmp_path_factory.mktemp("expected"), save_histograms_steps=3)


def assert_close(actual, expected):
    actual, expected = statistics(actual), statistics(expected)
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name][:4], values[:4], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"iterations_per_loop": 7},
        {"iterations_per_loop": 100, "infeed_buffer_bytes": 300},
        {"iterations_per_loop": 10, "loop_shape": "per_step"},
        {"devices": 4},
    ],
    ids=str,
)
def test_they_do_not_depend_on_how_the_steps_are_run(tmp_path, expected, settings):
    histograms, _ = trained(tmp_path, save_histograms_steps=3, **settings)
    assert list(histograms) == [3, 6, 9]
    assert_close(histograms, expected[0])


def test_training_is_the_same_with_them_and_without(tmp_path, expected):
    histograms, state = trained(tmp_path)
    assert histograms == {}
    assert_equal(state, expected[1])


def test_one_program_takes_them_and_does_not(tmp_path, compilations):
    estimator = est.Estimator(
        mlp,
        tmp_path,
        config(iterations_per_loop=5, save_histograms_steps=7),
        train_batch_size=4,
    )
    estimator.train(lambda: dataset(40), max_steps=5)
    before = compilations.count
    estimator.train(lambda: dataset(40), max_steps=10)
    assert compilations.count == before


def test_they_are_written_for_tensorboard_at_their_steps(tmp_path):
    trained(tmp_path, save_histograms_steps=5, save_summary_steps=4)

    tags = {(value.tag, step) for step, value in values_in(tmp_path)}
    names = [f"{layer}/{kind}" for layer in ("Dense_0", "Dense_1") for kind in ("bias", "kernel")]
    assert tags == {
        *{("loss", step) for step in (4, 8)},
        *{(f"norm/{what}", s) for what in ("parameters", "gradients") for s in (5, 10)},
        *{
            (f"{what}/{n}", s)
            for what in ("parameters", "gradients")
            for n in names
            for s in (5, 10)
        },
    }


def test_without_scalars_they_are_written_alone(tmp_path):
    trained(tmp_path, save_histograms_steps=5)
    assert {name for name, _ in scalars_in(tmp_path)} == {"norm/parameters", "norm/gradients"}


def test_an_optimizer_with_huge_gradients_shows_them(tmp_path):
    def model_fn(features, labels, mode, params, context):
        return mlp(features, labels * 1e30, mode, {"optimizer": optax.sgd(0.0)}, context)

    found = {}
    estimator = est.Estimator(
        model_fn, tmp_path, config(save_histograms_steps=1), train_batch_size=4
    )
    with pytest.raises(est.NanLossError):
        estimator.train(
            lambda: numbered(4),
            hooks=[est.hooks.LambdaHook(after_loop=lambda view: found.update(view.histograms))],
        )
    assert found[1]["gradients/Dense_1/kernel"].non_finite == 0
    assert found[1]["gradients/Dense_1/kernel"].maximum > 1e29
