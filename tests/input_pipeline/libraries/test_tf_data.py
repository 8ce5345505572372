"""Batches from tf.data."""

from __future__ import annotations

import numpy as np
import pytest

from input_pipeline import Stack, make_source


@pytest.fixture(scope="module")
def tf():
    """TensorFlow, which takes seconds to import, and only where these tests run."""
    return pytest.importorskip("tensorflow")


def read(source, count=99) -> Stack:
    stack = source.read(count)
    assert stack is not None
    return stack


def batches_in(stack):
    return [row[:rows].tolist() for row, rows in zip(stack.features, stack.rows, strict=False)]


def ids(tf):
    """10 ids, shuffled anew in each of 3 epochs, in batches of 2."""
    return tf.data.Dataset.range(10).shuffle(10, seed=5).batch(2).repeat(3)


def test_batches_are_those_that_tensorflow_gives(tf):
    data = tf.data.Dataset.range(10).batch(4)
    assert batches_in(read(make_source(data, batch_size=4))) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


def test_after_a_resume_at_any_batch_the_rest_is_as_if_uninterrupted(tf):
    source = make_source(ids(tf), batch_size=2)
    start = source.position()
    stack = read(source)
    batches = batches_in(stack)
    for stop in (0, 1, 5, 8, 14):
        resumed = make_source(ids(tf), batch_size=2)
        resumed.seek([start, *stack.positions][stop])
        assert resumed.num_batches() == 15 - stop
        assert batches_in(read(resumed)) == batches[stop:]
    assert source.seeks_by_reading


def test_structure_and_dtypes_are_kept(tf):
    data = tf.data.Dataset.from_tensor_slices(
        (
            {"a": tf.cast([1, 2], tf.bfloat16), "b": (np.zeros((2, 3), np.uint8), [True, False])},
            np.array([1, 2]),
        )
    ).batch(2)
    stack = read(make_source(data, batch_size=2), 1)
    assert stack.features["a"].dtype.name == "bfloat16"
    assert stack.features["b"][0].shape == (1, 2, 3) and stack.features["b"][0].dtype == np.uint8
    assert stack.features["b"][1].tolist() == [[True, False]]
    assert stack.labels.dtype == np.int32


def test_strings_are_refused_or_stay_on_the_host(tf):
    data = tf.data.Dataset.from_tensor_slices({"name": ["a", "b"], "x": [1, 2]}).batch(2)
    with pytest.raises(ValueError, match=r"features\['name'\] holds"):
        make_source(data, batch_size=2).read(1)
    stack = read(make_source(data, batch_size=2, host_columns=True), 1)
    assert stack.host_columns[0]["name"].tolist() == [b"a", b"b"]
    assert list(stack.features) == ["x"]


def test_a_dataset_that_is_not_batched_is_an_error_with_the_way_out(tf):
    with pytest.raises(ValueError, match=r"not batched.*batch\(params\['batch_size'\]\)"):
        make_source(tf.data.Dataset.range(3), batch_size=2)


def test_an_error_in_a_generator_is_raised_with_its_message(tf):
    def generate():
        yield 1
        raise ValueError("bad record 17")

    data = tf.data.Dataset.from_generator(
        generate, output_signature=tf.TensorSpec((), tf.int64)
    ).batch(1)
    source = make_source(data, batch_size=1)
    assert batches_in(read(source, 1)) == [[1]]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        source.read(1)
    assert "bad record 17" in caught.value.message


def test_a_dataset_without_end_has_no_number_of_batches(tf):
    source = make_source(tf.data.Dataset.range(3).batch(3).repeat(), batch_size=3)
    assert source.num_batches() is None
    assert batches_in(read(source, 3)) == [[0, 1, 2]] * 3
