"""The order of examples and the cuts between batches, against plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline import PositionError
from input_pipeline.order import Order, OrderReader, Shard, Shuffle, Take


def indices_of(order, start, count):
    wanted = OrderReader(order).read(start, count)
    return list(range(order.num_examples))[wanted] if isinstance(wanted, slice) else list(wanted)


def test_without_steps_each_epoch_is_in_the_order_of_the_data():
    assert indices_of(Order(3, epochs=None), 0, 8) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_shuffled_epoch_is_that_of_a_generator_seeded_with_seed_and_epoch():
    order = Order(7, (Shuffle(5),), epochs=3)
    expected = [
        index for epoch in range(3) for index in np.random.default_rng([5, epoch]).permutation(7)
    ]
    assert indices_of(order, 0, 21) == expected


@given(st.integers(1, 12), st.integers(0, 40), st.integers(1, 40))
def test_reading_may_start_anywhere(num_examples, start, count):
    order = Order(num_examples, (Shuffle(1),), epochs=None)
    assert indices_of(order, start, count) == indices_of(order, 0, start + count)[start:]


@given(st.integers(0, 20), st.integers(1, 6))
def test_shards_part_an_epoch_between_them(num_examples, count):
    whole = Order(num_examples, (Shuffle(3),)).epoch_indices(2)
    parts = [
        Order(num_examples, (Shuffle(3), Shard(count, index))).epoch_indices(2)
        for index in range(count)
    ]
    together = [
        index for row in itertools.zip_longest(*parts) for index in row if index is not None
    ]
    assert together == list(whole)


@given(st.integers(0, 20), st.integers(1, 6), st.integers(0, 12))
def test_the_length_of_an_epoch_is_known_without_making_it(num_examples, shards, taken):
    for steps in [(Shuffle(0), Shard(shards, shards - 1)), (Take(taken), Shard(shards, 0))]:
        order = Order(num_examples, steps)
        assert order.epoch_length == len(order.epoch_indices(0))


def test_a_limit_ends_an_endless_order():
    assert Order(3, epochs=None, limit=7).length == 7
    assert Order(3, epochs=2, limit=7).length == 6
    assert Order(3, epochs=None).length is None
    assert Order(0, epochs=None).length == 0


@given(st.integers(1, 9), st.integers(0, 40))
def test_a_position_leads_back_to_where_it_was_made(num_examples, cursor):
    order = Order(num_examples, (Shuffle(0), Shard(2, 0)), epochs=None)
    assert order.cursor(order.position(3, cursor)) == (3, min(cursor, order.epoch_length))


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 5), st.data())
def test_another_number_of_shards_goes_on_with_just_what_is_left_of_the_epoch(
    num_examples, before, after, data
):
    cursor = data.draw(st.integers(0, max(num_examples // before - 1, 0)))
    whole = list(Order(num_examples, (Shuffle(9),)).epoch_indices(0))
    position = Order(num_examples, (Shuffle(9), Shard(before, 0))).position(0, cursor)
    rest = []
    for index in range(after):
        order = Order(num_examples, (Shuffle(9), Shard(after, index)))
        _, start = order.cursor(position)
        rest += order.epoch_indices(0)[start:].tolist()
    assert sorted(rest) == sorted(whole[cursor * before :])


def test_all_shards_have_the_same_position():
    orders = [Order(12, (Shard(3, index),)) for index in range(3)]
    assert len({str(order.position(0, 2)) for order in orders}) == 1


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (Order(11, (Shuffle(0),)), "num_examples"),
        (Order(10, (Shuffle(1),)), "steps"),
        (Order(10, (Shard(2, 0), Shuffle(0))), "steps"),
    ],
)
def test_the_position_of_another_order_is_refused(other, key):
    with pytest.raises(PositionError, match=key):
        Order(10, (Shuffle(0),)).cursor(other.position(0, 3))
