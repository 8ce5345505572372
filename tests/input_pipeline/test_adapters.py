"""From whatever input_fn returns to a source."""

from __future__ import annotations

import collections

import jax.numpy as jnp
import numpy as np
import pytest

from input_pipeline import Dataset, Stack, make_source

Point = collections.namedtuple("Point", ["x", "y"])


def read(data, batch_size, count=9, **options) -> Stack:
    stack = make_source(data, batch_size=batch_size, **options).read(count)
    assert stack is not None
    return stack


X = np.arange(5, dtype=np.float32)
Y = np.arange(5, dtype=np.int32)


def whole(data, **options):
    """Returns all that is read, features and labels, without padding."""
    stack = read(data, 2, **options)
    real = np.arange(2) < stack.rows[:, None]
    return [
        None if leaf is None else leaf[: stack.steps][real]
        for leaf in (stack.features, stack.labels)
    ]


def assert_features_and_labels(data):
    features, labels = whole(data)
    np.testing.assert_array_equal(features, X)
    np.testing.assert_array_equal(labels, Y)


def batches():
    for start in range(0, 5, 2):
        yield X[start : start + 2], Y[start : start + 2]


class Loader:
    """What many libraries have: an iterable that is no iterator."""

    def __iter__(self):
        return batches()


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (jnp.asarray(X), jnp.asarray(Y)),
        Dataset.from_arrays((X, Y)),
        Dataset.from_arrays((X, Y)).batch(2),
        list(batches()),
        batches(),
        batches,
        iter(list(batches())),
        Loader(),
        Loader().__iter__,
        zip([X[:2], X[2:4], X[4:]], [Y[:2], Y[2:4], Y[4:]], strict=True),
    ],
)
def test_features_and_labels_are_read_from(data):
    assert_features_and_labels(data)


def test_a_single_array_is_features():
    features, labels = whole(X)
    np.testing.assert_array_equal(features, X)
    assert labels is None


def test_a_named_tuple_of_two_is_features():
    stack = read(Point(X, Y), 5, count=1)
    assert isinstance(stack.features, Point) and stack.labels is None
    np.testing.assert_array_equal(stack.features.y, [Y])


def test_a_nested_dict_is_features():
    stack = read({"a": {"b": X}, "c": (Y, Y, Y)}, 5, count=1)
    np.testing.assert_array_equal(stack.features["a"]["b"], [X])
    assert len(stack.features["c"]) == 3 and stack.labels is None


def test_a_source_is_taken_as_it_is():
    source = make_source((X, Y), batch_size=2)
    assert make_source(source, batch_size=2) is source


def test_a_source_with_another_batch_size_is_refused():
    with pytest.raises(ValueError, match="batch_size=2, but 3"):
        make_source(make_source((X, Y), batch_size=2), batch_size=3)


@pytest.mark.parametrize(
    "data", [(X, Y), Dataset.from_arrays((X, Y)), Dataset.from_arrays((X, Y)).batch(2), batches]
)
def test_partial_batches_are_left_out_where_asked(data):
    features, _ = whole(data, drop_remainder=True)
    np.testing.assert_array_equal(features, [0, 1, 2, 3])


@pytest.mark.parametrize("data", [X[:0], (X[:0], Y[:0]), [], iter([])])
def test_empty_data_reads_as_nothing(data):
    assert make_source(data, batch_size=2).read(1) is None


@pytest.mark.parametrize("data", [3, None, "files*.txt", object(), {1, 2}, lambda needed: needed])
def test_anything_else_is_an_error_that_lists_what_is_accepted(data):
    with pytest.raises(TypeError, match=r"(?s)input_fn returned .*arrays.*iterable.*Dataset"):
        make_source(data, batch_size=2)


def test_a_function_that_returns_no_iterator_is_an_error():
    with pytest.raises(TypeError, match="gave a int"):
        make_source(lambda: 3, batch_size=2).read(1)


@pytest.mark.parametrize("features", [X, {"x": X}, (X, X)])
def test_a_list_of_features_and_labels_is_an_error_that_asks_for_a_tuple(features):
    with pytest.raises(TypeError, match=r"list of two entries.* return features, labels"):
        make_source([features, Y], batch_size=2)


@pytest.mark.parametrize("batch", [X[:2], {"x": X[:2]}, (X[:2], Y[:2])])
def test_a_list_of_two_like_batches_is_read_as_batches(batch):
    assert make_source([batch, batch], batch_size=2).num_batches() == 2
