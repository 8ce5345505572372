"""Batches from iterables, iterators and generators."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from input_pipeline import PositionError, QueueClosed, RegroupedInputError, Stack
from input_pipeline.batch_source import BatchSource
from input_pipeline.iterables import CountingReader, IterableReader


def batch(start, rows=2):
    ids = np.arange(start, start + rows, dtype=np.int32)
    return {"id": ids}, ids * 10


def source_of(batches, *, batch_size=2, reopens=True, drop_remainder=False):
    return generated(
        lambda: iter(batches),
        batch_size=batch_size,
        reopens=reopens,
        drop_remainder=drop_remainder,
    )


def generated(open_batches, *, batch_size=2, reopens=True, drop_remainder=False):
    reader = IterableReader(open_batches, batch_size=batch_size, reopens=reopens)
    return BatchSource(reader, batch_size=batch_size, drop_remainder=drop_remainder)


def read(source, count, **options) -> Stack:
    stack = source.read(count, **options)
    assert stack is not None
    return stack


def ids_of(stack):
    rows_and_ids = zip(stack.rows, stack.features["id"], strict=False)
    return [ids[:rows].tolist() for rows, ids in rows_and_ids]


def test_batches_are_read_in_order_up_to_the_end():
    source = source_of([batch(0), batch(2), batch(4, rows=1)])
    first, second = read(source, 2), read(source, 2)
    assert ids_of(first) == [[0, 1], [2, 3]]
    assert first.labels.tolist() == [[0, 10], [20, 30]]
    assert ids_of(second) == [[4]]
    assert source.read(2) is None and source.read(2) is None


def test_never_more_is_taken_than_is_asked_for():
    taken = []

    def batches():
        for start in range(100):
            taken.append(start)
            yield batch(start)

    source = generated(batches)
    source.read(3)
    assert taken == [0, 1, 2]


def test_the_batch_that_the_element_spec_looked_at_is_still_read():
    source = source_of([batch(0), batch(2)])
    features, labels = source.element_spec()
    assert features["id"].shape == labels.shape == (2,)
    assert source.position() == source_of([]).position()
    assert ids_of(read(source, 5)) == [[0, 1], [2, 3]]


def test_no_batches_have_no_spec():
    source = source_of([])
    assert source.element_spec() == (None, None)
    assert source.read(1) is None


def test_batches_without_examples_are_passed_over():
    assert ids_of(read(source_of([batch(0, rows=0), batch(0), batch(2, rows=0)]), 3)) == [[0, 1]]


def test_partial_batches_are_left_out_where_asked():
    source = source_of([batch(0), batch(2, rows=1), batch(3)], drop_remainder=True)
    assert ids_of(read(source, 5)) == [[0, 1], [3, 4]]


def test_reading_returns_early_with_what_it_has_when_the_time_is_up():
    source = source_of([batch(0), batch(2)])
    assert ids_of(read(source, 2, fill_secs=0.0)) == [[0, 1]]


@pytest.mark.parametrize("stop", range(6))
@pytest.mark.parametrize("peek", [True, False])
def test_after_a_resume_at_any_batch_the_rest_is_as_if_uninterrupted(stop, peek):
    batches = [batch(0, rows=0), batch(0), batch(2, rows=1), batch(4), batch(6)]
    whole = source_of(batches)
    stack = read(whole, 9)
    positions = [source_of(batches).position(), *stack.positions]
    if stop >= len(positions):
        return
    resumed = source_of(batches)
    if peek:
        resumed.element_spec()
    resumed.seek(positions[stop])
    assert resumed.position() == positions[stop]
    rest = resumed.read(9)
    assert ([] if rest is None else ids_of(rest)) == ids_of(stack)[stop:]


def test_seeking_back_starts_an_iterable_over():
    source = source_of([batch(0), batch(2)])
    start = source.position()
    source.read(2)
    source.seek(start)
    assert ids_of(read(source, 2)) == [[0, 1], [2, 3]]


def test_a_position_of_an_iterable_is_found_by_reading():
    assert source_of([]).seeks_by_reading


def test_an_iterator_that_must_go_back_is_refused_with_the_way_out():
    source = source_of([batch(0), batch(2)], reopens=False)
    start = source.position()
    source.read(2)
    with pytest.raises(PositionError, match=r"cannot go back to 0.*generator function"):
        source.seek(start)


def test_the_position_at_another_batch_size_is_refused():
    with pytest.raises(RegroupedInputError, match=r"batches of 4 .* in batches of 2"):
        source_of([]).seek(source_of([], batch_size=4).position())


def test_the_position_of_another_kind_of_input_is_refused():
    with pytest.raises(PositionError, match="kind 'indexed'"):
        source_of([]).seek({"kind": "indexed", "epoch": 0, "examples": 3})


def test_an_error_in_a_generator_arrives_as_itself_behind_what_came_before_it():
    error = ValueError("bad record 17")

    def batches():
        yield batch(0)
        raise error

    source = generated(batches)
    assert ids_of(read(source, 4)) == [[0, 1]]
    with pytest.raises(ValueError) as caught:
        source.read(4)
    assert caught.value is error


def stop_at_two(start):
    if start == 2:
        raise StopIteration
    return batch(start)


def test_stop_iteration_out_of_a_mapped_function_is_an_error():
    source = source_of(map(stop_at_two, range(5)))
    assert ids_of(read(source, 5)) == [[0, 1], [1, 2]]
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        source.read(5)
    assert isinstance(caught.value.__cause__, StopIteration)


def stop_at_first(element):
    raise StopIteration


def test_stop_iteration_out_of_a_filter_is_an_error():
    with pytest.raises(RuntimeError, match=r"filter\(\).*StopIteration"):
        source_of(filter(stop_at_first, [batch(0)])).read(5)


class Batches:
    """An iterator whose `__next__` is written in Python."""

    def __init__(self):
        self.start = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.start == 4:
            raise StopIteration
        self.start += 2
        return batch(self.start - 2)


@pytest.mark.parametrize("batches", [Batches, lambda: map(lambda item: item, Batches())])
def test_the_stop_iteration_of_an_iterator_is_the_end(batches):
    assert ids_of(read(source_of(batches()), 5)) == [[0, 1], [2, 3]]


def test_closing_closes_the_generator():
    closed = []

    def batches():
        try:
            yield batch(0)
            yield batch(2)
        finally:
            closed.append(True)

    source = generated(batches)
    source.read(1)
    source.close()
    source.close()
    assert closed == [True]
    with pytest.raises(QueueClosed):
        source.read(1)


def test_a_generator_that_is_running_is_closed_by_its_reader_as_soon_as_it_yields():
    entered, go_on, closed = threading.Event(), threading.Event(), []

    def batches():
        try:
            entered.set()
            go_on.wait(10)
            yield batch(0)
            yield batch(2)
        finally:
            closed.append(threading.current_thread())

    source = generated(batches)
    raised = []

    def read():
        try:
            source.read(2)
        except QueueClosed as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert entered.wait(10)
    source.close()
    go_on.set()
    reader.join(10)
    assert closed == [reader] and len(raised) == 1


def test_an_input_closed_before_it_was_opened_is_never_opened():
    opened = []
    source = generated(lambda: opened.append(True) or iter([]))
    source.close()
    with pytest.raises(QueueClosed):
        source.read(1)
    assert not opened


def test_an_input_that_failed_does_not_seem_to_have_ended():
    error = ValueError("bad record 17")

    def batches():
        yield batch(0)
        raise error

    source = generated(batches)
    source.read(1)
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            source.read(4)
        assert caught.value is error


def test_a_position_behind_the_end_is_refused():
    longer = source_of([batch(0), batch(2), batch(4)])
    longer.read(3)
    with pytest.raises(PositionError, match="behind 3 batches, this input has 2"):
        source_of([batch(0), batch(2)]).seek(longer.position())


def test_batches_that_are_all_left_out_are_an_error_naming_both_sizes():
    source = source_of(iter(lambda: batch(0, rows=1), None), drop_remainder=True)
    with pytest.raises(ValueError, match=r"\(1 in the second\) than batch_size=2"):
        source.read(1)


def counted():
    """A reader of three batches that may start at any."""
    starts = range(0, 6, 2)
    return CountingReader(
        lambda at: iter([batch(start) for start in starts[at:]]), batch_size=2, length=3
    )


def test_an_input_that_can_start_anywhere_is_opened_where_it_shall_go_on():
    source = BatchSource(counted(), batch_size=2)
    source.seek({**source.position(), "batches": 2})
    assert ids_of(read(source, 9)) == [[4, 5]]
    assert not source.seeks_by_reading


def test_a_position_behind_the_known_end_is_refused():
    source = BatchSource(counted(), batch_size=2)
    with pytest.raises(PositionError, match="behind 4 batches, this input has 3"):
        source.seek({**source.position(), "batches": 4})


def test_the_batch_that_the_element_spec_looked_at_is_counted_among_those_left():
    source = BatchSource(counted(), batch_size=2)
    assert source.num_batches() == 3
    source.element_spec()
    assert source.num_batches() == 3
    source.read(1)
    assert source.num_batches() == 2


def test_an_input_that_ends_before_its_known_end_is_an_error():
    reader = CountingReader(lambda at: iter([batch(0)]), batch_size=2, length=3)
    source = BatchSource(reader, batch_size=2)
    source.read(1)
    with pytest.raises(RuntimeError, match="ended after 1 of 3 batches"):
        source.read(2)


def test_no_more_is_read_than_the_arrays_can_hold():
    stack = read(source_of([batch(0), batch(2)]), 5, capacity=1)
    assert ids_of(stack) == [[0, 1]]
