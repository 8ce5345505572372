"""Means over real examples, on the device and on the host."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from estimator.metrics import (
    HostMetrics,
    MeanOverExamples,
    is_mergeable,
    masked_sum,
    mean_loss,
)


class Largest:
    def __init__(self, value):
        self.value = value

    def merge(self, other):
        return Largest(max(self.value, other.value))

    def compute(self):
        return self.value


VALUES = np.array([1.0, 2.0, 4.0, 8.0], np.float32)


@pytest.mark.parametrize("keep", [[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 0, 0]])
def test_masked_sums_are_over_the_rows_that_are_kept(keep):
    mask = np.array(keep, bool)

    assert float(masked_sum(jnp.asarray(VALUES), jnp.asarray(mask))) == VALUES[mask].sum()


def test_without_a_mask_all_rows_count():
    assert float(masked_sum(jnp.asarray(VALUES), None)) == 15


@pytest.mark.parametrize("hidden", [np.nan, np.inf])
def test_what_a_mask_hides_may_be_anything(hidden):
    values = jnp.asarray([1.0, hidden, 3.0])
    mask = jnp.asarray([True, False, True])

    assert float(masked_sum(values, mask)) == 4


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.int8, jnp.bfloat16, jnp.float16])
def test_sums_are_made_in_float32_whatever_the_values(dtype):
    ones = jnp.ones(4099, dtype)

    total = masked_sum(ones, None)

    assert total.dtype == jnp.float32
    assert float(total) == 4099  # neither int8 nor the 16-bit floats can hold it


def test_a_mean_loss_is_over_the_rows_that_are_kept_and_a_scalar_is_its_own():
    assert float(mean_loss(jnp.asarray(VALUES), None)) == 3.75
    assert float(mean_loss(jnp.asarray(VALUES), jnp.asarray([True, False, True, False]))) == 2.5
    assert float(mean_loss(jnp.asarray(2.5), None)) == 2.5
    assert mean_loss(jnp.asarray(2.5, jnp.bfloat16), None).dtype == jnp.float32


@pytest.mark.parametrize("value, mergeable", [(Largest(1), True), (VALUES, False), (3.0, False)])
def test_what_has_merge_and_compute_is_mergeable(value, mergeable):
    assert is_mergeable(value) is mergeable


def test_means_over_examples_weigh_batches_by_their_rows():
    means = MeanOverExamples()
    means.add("loss", 20.0, 2)
    means.add("loss", 9.0, 1)
    means.add("other", 3.0, 3)

    assert means.compute() == {"loss": pytest.approx(29 / 3), "other": 1.0}


def test_means_over_many_batches_lose_no_digits():
    means = MeanOverExamples()
    for _ in range(10_000):
        means.add("loss", float(np.float32(0.1)), 1)

    assert means.compute()["loss"] == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_host_metrics_take_scalars_arrays_and_mergeable_objects():
    host = HostMetrics()
    for batch in np.split(np.arange(1.0, 6.0), [2, 4]):
        host.add(
            {
                "scalar": batch.mean(),
                "array": batch,
                "flags": batch > 2,
                "largest": Largest(batch.max()),
            },
            len(batch),
        )

    assert host.compute() == {"scalar": 3.0, "array": 3.0, "flags": 0.6, "largest": 5.0}


@pytest.mark.parametrize("returned", [None, 1.0, [1.0], "loss"])
def test_host_metrics_must_be_a_dict(returned):
    with pytest.raises(TypeError, match=f"must return a dict, got {type(returned).__name__}"):
        HostMetrics().add(returned, 3)


@pytest.mark.parametrize("value", [np.zeros(2), np.zeros((3, 1)), np.zeros((3, 3))])
def test_an_array_of_another_length_than_the_batch_is_refused_by_name(value):
    with pytest.raises(TypeError, match=r"'auc' of shape .* for 3 examples"):
        HostMetrics().add({"auc": value}, 3)


@pytest.mark.parametrize("value", ["high", None, {"a": 1.0}, np.array("x")])
def test_a_value_that_is_no_number_is_refused_by_name(value):
    with pytest.raises(TypeError, match="'auc'"):
        HostMetrics().add({"auc": value}, 3)
