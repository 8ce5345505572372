"""The thread that reads ahead: pieces, padding, limits, and how far it reads."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

from estimator.device_config import DeviceConfig
from estimator.errors import Rendezvous
from estimator.infeed import Infeed, Padding
from estimator.input_config import InputPipelineConfig
from estimator.input_partition import InputPartition
from estimator.mesh import Placement
from input_pipeline import make_source

WAIT_SECS = 10  # only a test that fails waits for so long


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in set(threading.enumerate()) - before] == []


def open_infeed(rendezvous, data, *, batch_size=4, devices=1, **options):
    options = {"capacity": 3, "limit": None, "padding": Padding.MASKED, **options}
    placement = Placement.make(DeviceConfig(devices=jax.devices()[:devices]))
    partition = InputPartition(placement, InputPipelineConfig())
    return Infeed(make_source(data, batch_size=batch_size), rendezvous, partition, **options)


def numbers(rows):
    return {"id": np.arange(rows, dtype=np.int32)}


def pieces_of(infeed, at_most=100):
    while (piece := infeed.take(at_most)) is not None:
        yield piece


def test_an_error_of_the_input_comes_behind_all_that_was_read_before_it():
    error = ValueError("bad record 17")

    def batches():
        for start in range(0, 20, 4):
            yield {"id": np.arange(start, start + 4)}
        raise error

    seen = []
    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        for piece in pieces_of(open_infeed(rendezvous, batches())):
            seen += real_rows(piece)

    assert caught.value is error
    assert [row for batch in seen for row in batch] == list(range(20))


def real_rows(piece):
    ids = np.asarray(piece.batches.features["id"])[piece.start : piece.stop]
    return [batch[:count].tolist() for batch, count in zip(ids, piece.rows, strict=True)]


@pytest.mark.parametrize("at_most", [1, 2, 3, 100])
@pytest.mark.parametrize("rows", [1, 4, 13, 24, 29])
def test_pieces_give_every_row_once_and_in_order(rows, at_most):
    with Rendezvous() as rendezvous:
        infeed = open_infeed(rendezvous, numbers(rows))
        pieces = list(pieces_of(infeed, at_most))

    seen = [row for piece in pieces for batch in real_rows(piece) for row in batch]
    assert seen == list(range(rows))
    assert all(1 <= piece.steps <= min(at_most, 3) for piece in pieces)


def test_a_mask_tells_padding_from_rows():
    with Rendezvous() as rendezvous:
        (piece,) = pieces_of(open_infeed(rendezvous, numbers(6)))

    mask = np.asarray(piece.batches.mask)
    assert mask[:2].tolist() == [[True] * 4, [True, True, False, False]]
    assert piece.rows.tolist() == [4, 2]


@pytest.mark.parametrize("rows, has_mask", [(8, False), (6, True)])
def test_a_mask_only_comes_with_padding_if_so_asked(rows, has_mask):
    with Rendezvous() as rendezvous:
        infeed = open_infeed(rendezvous, numbers(rows), padding=Padding.MASKED_IF_ANY)
        (piece,) = pieces_of(infeed)

    assert (piece.batches.mask is not None) is has_mask


@pytest.mark.parametrize("devices", [1, 4])
def test_partial_batches_are_cut_to_their_true_size_if_so_asked(devices):
    def batches():
        for start, stop in [(0, 4), (4, 7), (7, 11), (11, 15), (15, 16)]:
            yield {"id": np.arange(start, stop, dtype=np.int32)}

    with Rendezvous() as rendezvous:
        infeed = open_infeed(
            rendezvous, batches(), capacity=5, padding=Padding.CUT, devices=devices
        )
        pieces = list(pieces_of(infeed))

    assert [real_rows(piece) for piece in pieces] == [
        [[0, 1, 2, 3]],
        [[4, 5, 6]],
        [[7, 8, 9, 10], [11, 12, 13, 14]],
        [[15]],
    ]
    widths = [piece.batches.features["id"].shape[1] for piece in pieces]
    assert widths == [4, 3, 4, 1]
    assert all(piece.batches.mask is None for piece in pieces)


def test_labels_stay_behind_if_the_model_takes_none():
    data = (numbers(4), np.zeros(4, np.float32))
    with Rendezvous() as rendezvous:
        (piece,) = pieces_of(open_infeed(rendezvous, data, labels=False))
    assert piece.batches.labels is None

    with Rendezvous() as rendezvous:
        (piece,) = pieces_of(open_infeed(rendezvous, data))
    assert piece.batches.labels.shape == (3, 4)


@pytest.mark.parametrize("limit, taken", [(1, 1), (3, 3), (4, 4), (5, 5)])
def test_no_more_than_the_limit_is_read(limit, taken):
    read = []

    def endless():
        while True:
            read.append(1)
            yield numbers(4)

    with Rendezvous() as rendezvous:
        infeed = open_infeed(rendezvous, endless(), limit=limit)
        assert sum(piece.steps for piece in pieces_of(infeed)) == taken

    assert len(read) == taken


def test_it_reads_a_bounded_number_of_transfers_ahead():
    read = []
    enough = threading.Event()

    def endless():
        while True:
            read.append(1)
            if len(read) == 9:  # two transfers wait, and one is being filled
                enough.set()
            yield numbers(4)

    with Rendezvous() as rendezvous:
        infeed = open_infeed(rendezvous, endless())
        assert enough.wait(WAIT_SECS)
        for taken in range(1, 40):
            infeed.take(1)
            # The transfer in use, two that wait, one that waits for room.
            assert len(read) <= taken + 4 * 3


def test_positions_follow_the_pieces():
    with Rendezvous() as rendezvous:
        infeed = open_infeed(rendezvous, numbers(29))
        positions = [piece.position for piece in pieces_of(infeed, 2)]

    for index, position in enumerate(positions[:-1]):
        again = make_source(numbers(29), batch_size=4)
        again.seek(position)
        left = again.read(100)
        assert left is not None
        rest = [row for p in range(left.steps) for row in left.features["id"][p, : left.rows[p]]]
        assert rest == list(range(29))[-len(rest) :]
        assert len(rest) < 29 - 4 * index


def test_an_error_of_the_input_reaches_the_taker_as_itself():
    error = ValueError("bad record 17")

    def batches():
        yield numbers(4)
        raise error

    with pytest.raises(ValueError) as caught, Rendezvous() as rendezvous:
        infeed = open_infeed(rendezvous, batches(), capacity=1)
        list(pieces_of(infeed))

    assert caught.value is error


def test_after_the_end_there_is_nothing_more_to_take():
    with Rendezvous() as rendezvous:
        infeed = open_infeed(rendezvous, numbers(4))
        assert infeed.take(1) is not None
        assert infeed.take(1) is None
        assert infeed.take(1) is None


def test_batches_are_split_over_the_devices():
    with Rendezvous() as rendezvous:
        (piece,) = pieces_of(open_infeed(rendezvous, numbers(8), devices=4, batch_size=8))

    shards = piece.batches.features["id"].addressable_shards
    assert [shard.data.shape for shard in shards] == [(3, 2)] * 4


def test_a_lap_tells_the_time_and_the_part_of_it_spent_waiting():
    with Rendezvous() as rendezvous:
        infeed = open_infeed(rendezvous, numbers(40))
        list(pieces_of(infeed))
        elapsed, waited = infeed.lap()
        _, waited_after = infeed.lap()

    assert 0 < waited <= elapsed
    assert waited_after == 0
