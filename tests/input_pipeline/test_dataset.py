"""The small pipeline for those who bring arrays or files, against plain loops."""

from __future__ import annotations

import itertools
import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline import Dataset, PositionError

IDS = np.arange(5, dtype=np.int32)


class Records:
    """A random access source of the ids 0, 1, ..., which counts how often each was read."""

    def __init__(self, length):
        self.reads = [0] * length

    def __len__(self):
        return len(self.reads)

    def __getitem__(self, index):
        self.reads[index] += 1
        return np.int32(index)


def from_array(length):
    return Dataset.from_arrays(np.arange(length, dtype=np.int32))


def from_records(length):
    return Dataset.from_source(Records(length))


def from_function(length):
    return Dataset.from_generator(lambda: (np.int32(value) for value in range(length)))


roots = st.sampled_from([from_array, from_records, from_function])


def batches_in(stack):
    if stack is None:
        return []
    return [row[:rows].tolist() for row, rows in zip(stack.features, stack.rows, strict=False)]


def read(dataset, batch_size=5, count=99, **options):
    """Returns the real examples of each batch, read from the start."""
    source = dataset.source(batch_size, **options)
    try:
        return batches_in(source.read(count))
    finally:
        source.close()


def cut(examples, size):
    return [examples[start : start + size] for start in range(0, len(examples), size)]


# -- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_an_unbatched_dataset_is_batched_to_the_size_that_is_needed(make):
    assert read(make(5), 3) == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_batches_after_repeat_go_over_the_border_of_epochs(make):
    assert read(make(5).repeat(2).batch(4), 4) == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_batches_before_repeat_end_with_each_epoch(make):
    assert read(make(5).batch(4).repeat(2), 4) == [[0, 1, 2, 3], [4]] * 2


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_batch_may_leave_out_the_remainder_of_each_epoch(make):
    dataset = make(5).batch(4, drop_remainder=True).repeat(2)
    assert read(dataset, 4) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_repeat_without_a_count_has_no_end(make):
    assert read(make(5).repeat(), 5, count=7) == [[0, 1, 2, 3, 4]] * 7


def test_repeats_multiply():
    assert len(read(from_array(5).repeat(2).repeat(3), 5)) == 6


def test_batches_of_several_epochs_end_with_the_last_of_them():
    dataset = from_array(3).repeat(2).batch(4).repeat(2)
    assert read(dataset, 4) == [[0, 1, 2, 0], [1, 2]] * 2


@pytest.mark.parametrize("make", [from_array, from_records])
def test_each_epoch_is_shuffled_anew_and_alike_in_every_run(make):
    dataset = make(5).shuffle(seed=7).repeat(3)
    expected = [np.random.default_rng([7, epoch]).permutation(5).tolist() for epoch in range(3)]
    assert read(dataset, 5) == expected == read(dataset, 5)


def test_each_method_returns_another_dataset():
    dataset = from_array(5)
    for change in (dataset.repeat, lambda: dataset.shuffle(seed=1), lambda: dataset.batch(2)):
        change()
    assert read(dataset, 5) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_take_keeps_the_first_examples_of_each_epoch(make):
    assert read(make(5).take(2).repeat(2), 5) == [[0, 1, 0, 1]]


def test_take_after_repeat_counts_over_all_epochs():
    assert read(from_array(5).repeat().take(7), 5) == [[0, 1, 2, 3, 4], [0, 1]]


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_take_after_batch_counts_batches(make):
    assert read(make(5).repeat().batch(2).take(3), 2) == [[0, 1], [2, 3], [4, 0]]


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_the_count_of_batches_to_take_goes_on_after_a_resume(make):
    dataset = make(5).repeat().batch(2).take(3)
    source = dataset.source(2)
    source.read(2)
    resumed = dataset.source(2)
    resumed.seek(source.position())
    assert batches_in(resumed.read(9)) == [[4, 0]]


# -- functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_functions_of_examples_are_applied_in_the_order_given(make):
    dataset = make(6).map(lambda value: value + 1).filter(lambda value: value % 2).map(lambda v: -v)
    assert read(dataset, 2) == [[-1, -3], [-5]]


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_functions_after_batch_are_given_batches(make):
    dataset = make(6).batch(2).filter(lambda batch: batch[0] != 2).map(lambda batch: batch * 10)
    assert read(dataset, 2) == [[0, 10], [40, 50]]


def test_a_function_may_return_features_and_labels():
    dataset = from_array(4).map(lambda value: ({"id": value}, value * 2))
    stack = dataset.source(4).read(1)
    assert stack is not None
    assert stack.features["id"].tolist() == [[0, 1, 2, 3]]
    assert stack.labels.tolist() == [[0, 2, 4, 6]]


def test_an_element_of_features_and_labels_is_a_tuple():
    dataset = Dataset.from_arrays(({"id": IDS}, IDS)).map(lambda element: element[0]["id"])
    assert read(dataset, 5) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("batched", [True, False])
def test_a_function_that_changes_its_argument_leaves_the_data_alone(batched):
    data = np.zeros((4, 2), np.float32)

    def spoil(value):
        value += 1
        return value

    dataset = Dataset.from_arrays(data)
    dataset = dataset.batch(2).map(spoil) if batched else dataset.map(spoil)
    stack = dataset.source(2).read(2)
    assert stack is not None and stack.features.tolist() == np.ones((2, 2, 2)).tolist()
    assert not data.any()


@pytest.mark.parametrize("threads", [0, 3])
def test_randomness_depends_on_seed_epoch_and_example_alone(threads):
    def with_noise(value, rng):
        return value, rng.integers(1000)

    dataset = from_array(6).shuffle(seed=0).map(with_noise, seed=3).repeat(2)
    if threads:
        dataset = dataset.prefetch(4, threads=threads)
    source = dataset.source(6)
    stack = source.read(2)
    source.close()
    assert stack is not None
    for epoch in range(2):
        noise = dict(zip(stack.features[epoch].tolist(), stack.labels[epoch].tolist(), strict=True))
        assert noise == {n: np.random.default_rng([3, epoch, n]).integers(1000) for n in range(6)}


def test_an_error_in_a_function_arrives_as_itself():
    error = ValueError("bad record 3")

    def fail_at_three(value):
        if value == 3:
            raise error
        return value

    for dataset in (from_array(5), from_array(5).prefetch(2, threads=2)):
        source = dataset.map(fail_at_three).source(2)
        assert batches_in(source.read(1)) == [[0, 1]]
        with pytest.raises(ValueError) as caught:
            source.read(1)
        assert caught.value is error
        source.close()


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("method", ["map", "filter"])
def test_stop_iteration_out_of_a_function_is_an_error(method, prefetch):
    def stop_at_two(value):
        if value == 2:
            raise StopIteration
        return True

    dataset = getattr(from_array(5), method)(stop_at_two)
    source = (dataset.prefetch(2) if prefetch else dataset).source(5)
    with pytest.raises(RuntimeError, match=r"stop_at_two.*StopIteration") as caught:
        source.read(1)
    assert isinstance(caught.value.__cause__, StopIteration)
    source.close()


def test_stop_iteration_out_of_a_mapped_generator_is_an_error():
    def stop_at_two(value):
        if value == 2:
            raise StopIteration
        return value

    dataset = Dataset.from_generator(lambda: map(stop_at_two, range(5)))
    with pytest.raises(RuntimeError, match=r"map\(\).*StopIteration"):
        dataset.source(5).read(1)


def test_an_example_unlike_the_first_is_an_error_naming_it():
    dataset = from_array(5).map(lambda value: {"x": np.zeros(3 if value == 4 else 2)})
    with pytest.raises(ValueError, match=r"features\['x'\] of example 4 .*\[2\], got float64 \[3"):
        dataset.source(5).read(1)


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_a_filter_that_keeps_nothing_for_ever_is_an_error(make):
    dataset = make(5).filter(lambda value: False).repeat()
    with pytest.raises(ValueError, match="kept none of the 5 examples"):
        dataset.source(2).read(1)


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_a_filter_of_batches_that_keeps_nothing_for_ever_is_an_error(make):
    dataset = make(5).batch(2).filter(lambda batch: False).repeat()
    with pytest.raises(ValueError, match="kept none of the 3 batches"):
        dataset.source(2).read(1)


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_a_filter_that_keeps_nothing_of_data_that_end_leaves_no_batch(make):
    source = make(5).filter(lambda value: False).repeat(2).source(2)
    assert source.element_spec() == (None, None)
    assert source.read(1) is None


@pytest.mark.parametrize("make", [from_records, from_function])
def test_epochs_without_end_that_never_fill_a_batch_are_an_error(make):
    dataset = make(5).batch(8, drop_remainder=True).repeat()
    with pytest.raises(ValueError, match="5 examples between two cuts do not fill a batch of 8"):
        dataset.source(8).read(1)


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_an_epoch_that_does_not_fill_a_batch_leaves_no_batch(make):
    assert read(make(5).batch(8, drop_remainder=True).repeat(2), 8) == []


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_repeating_no_data_ends(make):
    assert read(make(0).repeat(), 2) == []


# -- prefetch ------------------------------------------------------------------------------------


def test_examples_are_worked_on_at_the_same_time():
    together = threading.Barrier(3)

    def meet(value):
        together.wait(timeout=10)
        return value

    dataset = from_array(6).map(meet).prefetch(6, threads=3)
    assert read(dataset, 6) == [[0, 1, 2, 3, 4, 5]]


def test_no_more_examples_are_read_ahead_than_asked_for():
    records = Records(100)
    source = Dataset.from_source(records).prefetch(4).source(2)
    source.read(1)
    source.close()
    assert sum(records.reads) <= 2 + 4


def test_closing_ends_the_threads():
    before = set(threading.enumerate())
    source = from_array(100).map(lambda value: value).prefetch(8, threads=4).source(2)
    source.read(1)
    assert set(threading.enumerate()) - before
    source.close()
    assert not set(threading.enumerate()) - before


def test_closing_wakes_a_read_that_waits_for_a_thread():
    working, go_on = threading.Event(), threading.Event()

    def wait(value):
        working.set()
        go_on.wait(timeout=10)
        return value

    source = from_array(100).map(wait).prefetch(8, threads=1).source(50)
    raised = []

    def read_all():
        try:
            source.read(2)
        except Exception as error:
            raised.append(type(error).__name__)

    reader = threading.Thread(target=read_all)
    reader.start()
    assert working.wait(10)
    closer = threading.Thread(target=source.close)
    closer.start()
    go_on.set()
    reader.join(10)
    closer.join(10)
    assert raised == ["QueueClosed"] and not reader.is_alive() and not closer.is_alive()


def test_the_generator_of_an_epoch_is_closed():
    closed = []

    def generate():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    source = Dataset.from_generator(generate).source(2)
    source.read(1)
    assert not closed
    source.close()
    assert closed == [True]


# -- resume --------------------------------------------------------------------------------------


@given(
    make=roots,
    length=st.integers(1, 12),
    size=st.integers(1, 5),
    epochs=st.integers(1, 3),
    shuffled=st.booleans(),
    shards=st.integers(1, 3),
    modulus=st.integers(1, 4),
    per_epoch=st.booleans(),
    drop_remainder=st.booleans(),
    threads=st.integers(0, 2),
    reads=st.lists(st.integers(1, 4), max_size=5),
    data=st.data(),
)
def test_each_shard_reads_what_a_plain_loop_reads_before_and_after_a_resume(
    make, length, size, epochs, shuffled, shards, modulus, per_epoch, drop_remainder, threads,
    reads, data,
):  # fmt: skip
    shuffled = shuffled and make is not from_function
    for index in range(shards):
        dataset = make(length)
        if shuffled:
            dataset = dataset.shuffle(seed=2)
        if shards > 1:
            dataset = dataset.shard(shards, index)
        if modulus > 1:
            dataset = dataset.filter(lambda value: value % modulus)
        if threads:
            dataset = dataset.prefetch(3, threads=threads)
        if per_epoch:
            dataset = dataset.batch(size, drop_remainder).repeat(epochs)
        else:
            dataset = dataset.repeat(epochs).batch(size, drop_remainder)

        sequences = []
        for epoch in range(epochs):
            order = list(range(length))
            if shuffled:
                order = np.random.default_rng([2, epoch]).permutation(length).tolist()
            order = order[index::shards]
            sequences.append([value for value in order if modulus == 1 or value % modulus])
        if not per_epoch:
            sequences = [list(itertools.chain(*sequences))]
        expected = [batch for sequence in sequences for batch in cut(sequence, size)]
        if drop_remainder:
            expected = [batch for batch in expected if len(batch) == size]

        source = dataset.source(size)
        got, positions = [], [source.position()]
        for count in reads:
            if (stack := source.read(count)) is not None:
                got += batches_in(stack)
                positions += list(stack.positions)
        source.close()
        assert got == expected[: sum(reads)]

        stop = data.draw(st.integers(0, len(got)))
        resumed = dataset.source(size)
        resumed.seek(positions[stop])
        left = resumed.num_batches()
        assert left is None or left == len(expected) - stop
        assert batches_in(resumed.read(99)) == expected[stop:]
        resumed.close()


@given(
    epochs=st.integers(1, 3),
    per_shard=st.integers(1, 6),
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    new_size=st.integers(1, 5),
    data=st.data(),
)
def test_a_run_goes_on_with_another_number_of_shards_and_another_batch_size(
    epochs, per_shard, before, after, new_size, data
):
    length = per_shard * math.lcm(before, after)

    def shard(count, index):
        return from_array(length).shuffle(seed=1).shard(count, index).repeat(epochs)

    steps = data.draw(st.integers(0, epochs * length // before))
    sources = [shard(before, index).source(1) for index in range(before)]
    seen = [batch for source in sources if steps for batch in batches_in(source.read(steps))]
    positions = [source.position() for source in sources]
    assert all(position == positions[0] for position in positions)
    for index in range(after):
        resumed = shard(after, index).source(new_size)
        resumed.seek(positions[0])
        seen += batches_in(resumed.read(999))
    counts = np.bincount([value for batch in seen for value in batch], minlength=length)
    assert counts.tolist() == [epochs] * length


@pytest.mark.parametrize("make", [from_array, from_records, from_function])
def test_a_source_may_go_back_and_on(make):
    source = make(10).map(lambda value: value).source(2)
    start = source.position()
    source.read(2)
    later = source.position()
    source.read(2)
    source.seek(start)
    assert batches_in(source.read(1)) == [[0, 1]]
    source.seek(later)
    assert batches_in(source.read(1)) == [[4, 5]]


def test_a_resume_in_a_later_shuffled_epoch_goes_on_in_its_order():
    dataset = from_array(10).shuffle(seed=0).batch(2).repeat(3)
    whole = read(dataset, 2)
    assert sorted(itertools.chain(*whole[5:10])) == list(range(10))
    for stop in (8, 5):
        source = dataset.source(2)
        source.read(stop)
        resumed = dataset.source(2)
        resumed.seek(source.position())
        assert batches_in(resumed.read(99)) == whole[stop:]


@pytest.mark.parametrize(
    "other",
    [
        from_array(6),
        from_array(5).shuffle(seed=1),
        from_function(5),
        from_array(5).shard(2, 0).shuffle(seed=0),
    ],
)
def test_the_position_of_another_dataset_is_refused(other):
    with pytest.raises(PositionError, match="this input has"):
        from_array(5).shuffle(seed=0).source(2).seek(other.source(2).position())


def test_a_position_behind_the_end_of_what_is_generated_is_refused():
    longer = from_function(9).source(2)
    longer.read(4)
    shorter = from_function(5).source(2)
    shorter.seek(longer.position())
    with pytest.raises(PositionError, match="behind 8 examples of an epoch, this one has 5"):
        shorter.read(1)


def test_only_generated_data_is_read_again_to_find_a_position():
    assert from_function(5).source(2).seeks_by_reading
    assert not from_array(5).source(2).seeks_by_reading
    records = Records(100)
    source = Dataset.from_source(records).source(2)
    position = {**source.position(), "examples": 50}
    source.seek(position)
    assert batches_in(source.read(1)) == [[50, 51]] and sum(records.reads) == 2


# -- lengths -------------------------------------------------------------------------------------


def sequences(lengths):
    rows = [np.arange(1, length + 1, dtype=np.int32) for length in lengths]
    return Dataset.from_source([{"tokens": row, "length": len(row)} for row in rows])


def test_sequences_are_padded_to_the_first_length_that_holds_the_longest_of_the_batch():
    source = sequences([1, 2, 5, 3, 2, 2]).batch(2, pad_to=[2, 4, 8]).source(2)
    first, second, third = source.read(9), source.read(9), source.read(9)
    assert first is not None and second is not None and third is not None
    assert first.features["tokens"][: first.steps].tolist() == [[[1, 0], [1, 2]]]
    assert second.features["tokens"][:1].tolist() == [
        [[1, 2, 3, 4, 5, 0, 0, 0], [1, 2, 3, 0, 0, 0, 0, 0]]
    ]
    assert third.features["tokens"][:1].tolist() == [[[1, 2], [1, 2]]]
    assert second.features["length"][:1].tolist() == [[5, 3]]
    assert source.read(1) is None


def test_batches_of_one_length_share_a_stack():
    source = sequences([1, 2, 2, 1, 7, 8]).batch(2, pad_to=[2, 8]).source(2)
    stacks = [source.read(9), source.read(9)]
    assert [stack.steps for stack in stacks if stack is not None] == [2, 1]


def test_a_batch_held_back_for_its_length_is_not_counted_as_read():
    dataset = sequences([1, 2, 5, 3]).batch(2, pad_to=[2, 8])
    source = dataset.source(2)
    source.read(9)
    resumed = dataset.source(2)
    resumed.seek(source.position())
    stack = resumed.read(9)
    assert stack is not None and stack.features["length"][:1].tolist() == [[5, 3]]


def test_a_sequence_longer_than_all_lengths_is_an_error_naming_it():
    dataset = sequences([1, 9]).batch(2, pad_to=[2, 8])
    with pytest.raises(
        ValueError, match=r"features\['tokens'\] has an example of length 9.*\[2, 8"
    ):
        dataset.source(2).read(1)


# -- strings -------------------------------------------------------------------------------------

NAMES = {"name": np.array(["a", "bc", "def"]), "x": np.arange(3)}


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.from_arrays(NAMES),
        Dataset.from_arrays(NAMES).map(lambda row: row),
        Dataset.from_arrays(NAMES).batch(2).map(lambda row: row),
        Dataset.from_source(
            [{"name": "a", "x": 0}, {"name": "bc", "x": 1}, {"name": "def", "x": 2}]
        ),
    ],
)
def test_strings_are_refused_or_stay_on_the_host(dataset):
    with pytest.raises(ValueError, match=r"features\['name'\] holds .*Leave it out"):
        dataset.source(2).read(1)
    source = dataset.source(2, host_columns=True)
    assert list(source.element_spec()[0]) == ["x"]
    stack = source.read(2)
    assert stack is not None
    assert [columns["name"].tolist() for columns in stack.host_columns] == [["a", "bc"], ["def"]]
    assert list(stack.features) == ["x"]


def test_strings_may_be_mapped_to_numbers():
    dataset = Dataset.from_arrays(NAMES).map(lambda row: len(row["name"]))
    assert read(dataset, 3) == [[1, 2, 3]]


# -- words ---------------------------------------------------------------------------------------


def test_a_batch_size_other_than_that_of_the_dataset_is_an_error_naming_both():
    with pytest.raises(ValueError, match=r"batch\(4\), but batch_size=8"):
        from_array(5).batch(4).source(8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.repeat(2).shuffle(seed=0), "shuffle after repeat"),
        (lambda data: data.batch(2).shuffle(seed=0), "shuffle after batch"),
        (lambda data: data.repeat(2).shard(2, 0), "shard after repeat"),
        (lambda data: data.filter(bool).shard(2, 0), "shard after filter"),
        (lambda data: data.filter(bool).take(2), "take after filter"),
        (lambda data: data.repeat().take(2).repeat(), "repeat after take"),
        (lambda data: data.batch(2).take(2).map(bool), "put take last"),
        (lambda data: data.batch(2).batch(3), r"batch\(3\) after batch\(2\)"),
        (lambda data: data.batch(0), "size=0"),
        (lambda data: data.batch(2.0), "size=2.0"),
        (lambda data: data.batch(2, pad_to=[]), r"pad_to=\[\]"),
        (lambda data: data.batch(2, pad_to=[0]), r"pad_to=\[0\]"),
        (lambda data: data.repeat(0), "count=0"),
        (lambda data: data.repeat(True), "count=True"),
        (lambda data: data.shuffle(seed=-1), "seed=-1"),
        (lambda data: data.shard(2, 2), "index must be below count"),
        (lambda data: data.prefetch(0), "examples=0"),
        (lambda data: data.prefetch(1, threads=0), "threads=0"),
        (lambda data: from_function(3).shuffle(seed=0), "random access"),
        (lambda data: from_function(3).repeat().take(2), "known length"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(change, message):
    with pytest.raises(ValueError, match=message):
        change(from_array(5))


def test_a_generator_in_place_of_its_function_is_refused_with_words():
    with pytest.raises(TypeError, match="Pass the function itself"):
        Dataset.from_generator(iter([1, 2]))  # type: ignore[arg-type]


def test_an_iterator_is_no_random_access_source():
    with pytest.raises(TypeError, match="use from_generator"):
        Dataset.from_source(iter([1, 2]))  # type: ignore[arg-type]


def test_describe_prints_names_dtypes_shapes_and_bytes(capsys):
    arrays = ({"image": np.zeros((5, 2, 3), np.uint8), "name": np.array(list("abcde"))}, IDS)
    Dataset.from_arrays(arrays).batch(4).describe()
    assert capsys.readouterr().out.splitlines() == [
        "features['image']: uint8 [4, 2, 3], 24 bytes",
        "labels: int32 [4], 16 bytes",
        "40 bytes per batch, 2 batches",
    ]
