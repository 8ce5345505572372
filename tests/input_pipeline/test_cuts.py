"""The cuts between batches, against a plain loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.cuts import Cuts


def sizes(size, drop_remainder, segment, length):
    """Returns the number of examples in each batch of the first `length`, by a plain loop."""
    batches, batch = [], 0
    for example in range(1, length + 1):
        batch += 1
        ends = example == length or (segment is not None and example % segment == 0)
        if batch == size or ends:
            if batch == size or not drop_remainder:
                batches.append(batch)
            batch = 0
    return batches


every_cut = st.builds(
    Cuts, st.integers(1, 6), st.booleans(), st.one_of(st.none(), st.integers(1, 9))
)


@given(every_cut, st.integers(0, 50), st.integers(1, 30))
def test_batches_are_cut_as_a_plain_loop_cuts_them(cuts, length, count):
    expected = sizes(cuts.size, cuts.drop_remainder, cuts.segment, length)
    got = [rows for _, batches, rows in cuts.runs(0, length, count) for _ in range(batches)]
    assert got == expected[:count]
    assert cuts.num_batches(0, length) == len(expected)


@given(every_cut, st.integers(0, 50), st.integers(1, 10))
def test_reading_some_batches_at_a_time_gives_the_same_ones(cuts, length, count):
    start, got = 0, []
    while runs := list(cuts.runs(start, length, count)):
        got += [rows for _, batches, rows in runs for _ in range(batches)]
        last_start, batches, rows = runs[-1]
        start = last_start + batches * rows
        assert cuts.num_batches(start, length) == cuts.num_batches(0, length) - len(got)
    assert got == sizes(cuts.size, cuts.drop_remainder, cuts.segment, length)


def test_epochs_shorter_than_a_batch_that_must_be_full_hold_nothing():
    cuts = Cuts(8, drop_remainder=True, segment=5)
    assert list(cuts.runs(0, None, 3)) == []
    assert cuts.num_batches(0, None) == 0
