"""Several sources as one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipeline import Dataset, RegroupedInputError, Source, Stack, make_source
from input_pipeline.combined import CombinedSource


def read(source: Source, count=99, **options) -> Stack:
    stack = source.read(count, **options)
    assert stack is not None
    return stack


def stacks_of(source: Source, count):
    while (stack := source.read(count)) is not None:
        yield stack


def batches_in(*stacks):
    return [
        row[:rows].tolist()
        for stack in stacks
        for row, rows in zip(stack.features, stack.rows, strict=False)
    ]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def combined(*inputs, batch_size=2, **options):
    return CombinedSource([make_source(data, batch_size=batch_size, **options) for data in inputs])


def shards(size, count, batch_size, *, epochs: int | None = 1, mapped=False):
    """Returns the shards of shuffled ids, as one source of batches over all of them."""

    def shard(index):
        data = Dataset.from_arrays(np.arange(size)).shuffle(seed=7).shard(count, index)
        return (data.map(lambda value: value) if mapped else data).repeat(epochs)

    return combined(*map(shard, range(count)), batch_size=batch_size)


def plain_batches(size, count, batch_size, epochs):
    """Returns what `shards` reads, made in the plainest way."""
    orders = [np.random.default_rng([7, epoch]).permutation(size) for epoch in range(epochs)]
    streams = [np.concatenate([order[index::count] for order in orders]) for index in range(count)]
    longest = max(map(len, streams))
    steps = range(0, longest, batch_size)
    return [[row for s in streams for row in s[at : at + batch_size].tolist()] for at in steps]


def generated(*batches, closed=None, error=None):
    try:
        yield from (np.array(batch) for batch in batches)
        if error is not None:
            raise error
    finally:
        if closed is not None:
            closed.append(batches)


def test_a_batch_joins_those_of_the_sources_in_their_order():
    source = combined(np.arange(4), np.arange(10, 14))
    assert source.batch_size == 4 and source.num_batches() == 2
    assert batches_in(read(source)) == [[0, 1, 10, 11], [2, 3, 12, 13]]
    assert source.at_end() and source.read(1) is None


def test_sources_that_end_earlier_or_in_partial_batches_lose_nothing():
    source = combined(np.arange(3), np.arange(10, 11), np.arange(20, 25))
    assert source.num_batches() == 3
    stacks = list(stacks_of(source, 9))
    assert batches_in(*stacks) == [[0, 1, 10, 20, 21], [2, 22, 23], [24]]
    assert stacks[1].features[0].tolist() == [2, 22, 23, 2, 22, 23]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    count=st.integers(1, 5),
    batch_size=st.integers(1, 5),
    epochs=st.integers(1, 3),
    stack=st.integers(1, 4),
    stop=st.integers(0, 60),
    mapped=st.booleans(),
)
def test_every_example_is_read_once_an_epoch_before_and_after_a_resume(
    size, count, batch_size, epochs, stack, stop, mapped
):
    expected = plain_batches(size, count, batch_size, epochs)
    assert sorted(flat(expected)) == sorted(list(range(size)) * epochs)
    source = shards(size, count, batch_size, epochs=epochs, mapped=mapped)
    start = source.position()
    stacks = list(stacks_of(source, stack))
    assert batches_in(*stacks) == expected
    positions = [start, *itertools.chain.from_iterable(each.positions for each in stacks)]
    stop = min(stop, len(expected))

    resumed = shards(size, count, batch_size, epochs=epochs, mapped=mapped)
    resumed.seek(positions[stop])

    assert resumed.num_batches() == len(expected) - stop
    assert batches_in(*stacks_of(resumed, stack)) == expected[stop:]
    assert resumed.position() == positions[-1] == source.position()


@settings(max_examples=60, deadline=None)
@given(
    per_shard=st.integers(1, 6),
    before=st.sampled_from([1, 2, 3, 4]),
    after=st.sampled_from([1, 2, 3, 4, 6]),
    batches=st.integers(0, 6),
)
def test_another_number_of_shards_goes_on_at_the_same_example(per_shard, before, after, batches):
    size, batch_size = 12 * per_shard, 12
    source = shards(size, before, batch_size // before, epochs=None)
    position = read(source, batches).positions[-1] if batches else source.position()
    done = batches * batch_size

    resumed = shards(size, after, batch_size // after, epochs=None)
    resumed.seek(position)

    order = [np.random.default_rng([7, epoch]).permutation(size) for epoch in range(14)]
    expected = np.concatenate(order)[done : done + 3 * batch_size].tolist()
    assert sorted(flat(batches_in(read(resumed, 3)))) == sorted(expected)


def test_the_position_of_sources_that_share_no_order_holds_for_their_number_only():
    source = combined(np.arange(8), np.arange(8))
    position = read(source, 2).positions[0]
    with pytest.raises(RegroupedInputError, match="2 input pipelines, and here are 3"):
        combined(np.arange(8), np.arange(8), np.arange(8)).seek(position)


def test_what_is_left_of_a_longer_stack_is_read_next_and_not_counted_before():
    lengths = Dataset.from_source([np.zeros(n) for n in (1, 1, 1, 3)]).batch(1, pad_to=[2, 4])
    steady = Dataset.from_source([np.zeros(2)] * 3 + [np.zeros(4)]).batch(1, pad_to=[2, 4])
    short = Dataset.from_source([np.zeros(2)]).batch(1, pad_to=[2])
    source = CombinedSource([data.source(1) for data in (lengths, steady, short)])
    shapes = []
    positions = []
    while (stack := source.read(3)) is not None:
        shapes.append((stack.features.shape[2], stack.rows.tolist()))
        positions.append(source.position()["positions"][0]["examples"])
    assert shapes == [(2, [3]), (2, [2, 2]), (4, [2])]
    assert positions == [1, 3, 4]


def test_batches_that_differ_between_sources_are_an_error_naming_leaf_and_sources():
    source = combined({"x": np.zeros((4, 3))}, {"x": np.zeros((4, 2))})
    with pytest.raises(
        ValueError,
        match=r"features\['x'\] differs.*pipeline 0 of 2 has float32 \[batch, 3\], "
        r"input pipeline 1 of 2 has float32 \[batch, 2\]",
    ):
        source.element_spec()


def test_a_leaf_that_one_source_lacks_is_named():
    source = combined({"x": np.zeros(4)}, {"x": np.zeros(4), "y": np.zeros(4)})
    with pytest.raises(ValueError, match=r"features\['y'\] differs.*0 of 2 has none"):
        source.read(1)


def test_an_error_of_a_source_is_raised_as_itself_and_says_whose_it_is():
    error = ValueError("bad record 17")
    source = combined(generated([0, 1], [2, 3]), generated([4, 5], error=error))
    assert batches_in(read(source, 2)) == [[0, 1, 4, 5]]
    with pytest.raises(ValueError) as caught:
        source.read(2)
    assert caught.value is error
    assert error.__notes__ == ["This was in input pipeline 1 of 2."]


def test_closing_closes_all_even_if_one_fails():
    closed = []

    def failing():
        try:
            yield np.arange(2)
        finally:
            raise RuntimeError("cleanup failed")

    source = combined(generated([0, 1], [2, 3], closed=closed), failing(), generated([1], [2]))
    read(source, 1)
    with pytest.raises(RuntimeError, match="cleanup failed"):
        source.close()
    assert len(closed) == 1


def test_sources_without_batches_have_no_spec():
    source = combined([], [])
    assert source.element_spec() == (None, None) and source.at_end()


def test_one_empty_source_beside_another_is_passed_over():
    source = combined([], [np.arange(2)])
    assert source.element_spec()[0].shape == (4,)
    assert batches_in(read(source)) == [[0, 1]]


def test_columns_of_the_host_are_joined_too():
    data = {"name": np.array(["a", "b", "c"]), "x": np.arange(3)}
    source = combined(data, data, host_columns=True)
    source.element_spec()
    assert source.host_column_names == ("name",)
    columns = [columns["name"].tolist() for columns in read(source).host_columns]
    assert columns == [["a", "b", "a", "b"], ["c", "c"]]


def test_a_source_without_end_has_no_number_of_batches():
    endless = Dataset.from_arrays(np.arange(4)).repeat()
    assert combined(np.arange(4), endless).num_batches() is None


def test_the_arrays_have_the_capacity_that_was_asked_for():
    stack = read(combined(np.arange(4), np.arange(4)), 1, capacity=5)
    assert stack.features.shape == (5, 4) and stack.steps == 1


def test_shards_of_data_that_stays_on_the_devices_share_its_table():
    data = Dataset.from_arrays(np.arange(10, 18), device_resident=True)
    source = combined(data.shard(2, 0), data.shard(2, 1))
    assert source.table is not None and source.element_spec()[0].shape == (4,)
    assert batches_in(read(source)) == [[0, 2, 1, 3], [4, 6, 5, 7]]


def test_different_tables_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"one Dataset.from_arrays.* outside of input_fn"):
        combined(*(Dataset.from_arrays(np.arange(4), device_resident=True) for _ in range(2)))
