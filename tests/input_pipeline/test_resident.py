"""Datasets whose arrays wait on the devices give the numbers of the rows that others gather."""

from __future__ import annotations

import numpy as np
import pytest

from input_pipeline import Dataset, Source


def data():
    return {"x": np.arange(26.0, dtype=np.float32).reshape(13, 2)}, np.arange(13, dtype=np.int32)


def source_of(steps, *, device_resident: bool) -> Source:
    return steps(Dataset.from_arrays(data(), device_resident=device_resident)).source(4)


ORDERS = {
    "as it is": lambda dataset: dataset,
    "shuffled": lambda dataset: dataset.shuffle(1).repeat(3),
    "cut by epoch": lambda dataset: dataset.shuffle(1).batch(4).repeat(2),
    "sharded": lambda dataset: dataset.shuffle(0).shard(2, 1).repeat(2),
    "without remainder": lambda dataset: dataset.batch(4, drop_remainder=True),
    "some": lambda dataset: dataset.repeat().take(30),
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_rows_are_those_that_would_have_been_gathered(order):
    host = source_of(ORDERS[order], device_resident=False)
    resident = source_of(ORDERS[order], device_resident=True)
    assert resident.element_spec() == host.element_spec()
    assert resident.table is not None and host.table is None
    features, labels = resident.table.pair

    while (wanted := host.read(3)) is not None:
        assert resident.num_batches() == (host.num_batches() or 0) + wanted.steps
        stack = resident.read(3)
        assert stack is not None and stack.labels is None
        numbers = stack.features[: stack.steps]
        assert numbers.dtype == np.int32
        np.testing.assert_array_equal(features["x"][numbers], wanted.features["x"][: wanted.steps])
        np.testing.assert_array_equal(labels[numbers], wanted.labels[: wanted.steps])
        np.testing.assert_array_equal(stack.rows, wanted.rows)
        assert list(stack.positions) == list(wanted.positions)
    assert resident.read(3) is None


def test_a_position_of_data_on_the_host_holds_for_data_on_the_devices():
    host = source_of(ORDERS["shuffled"], device_resident=False)
    host.read(4)
    resident = source_of(ORDERS["shuffled"], device_resident=True)
    resident.seek(host.position())
    stack, wanted = resident.read(2), host.read(2)
    assert stack is not None and wanted is not None
    np.testing.assert_array_equal(stack.features, wanted.labels)  # labels are the row numbers


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda dataset: dataset.map(lambda example: example), "map"),
        (lambda dataset: dataset.filter(lambda example: True), "filter"),
        (lambda dataset: dataset.batch(4).map(lambda batch: batch), "map"),
        (lambda dataset: dataset.batch(4).take(2), "take of batches"),
        (lambda dataset: dataset.batch(4, pad_to=[8]), "pad_to"),
    ],
)
def test_what_needs_the_examples_on_the_host_is_refused(change, what):
    dataset = Dataset.from_arrays(data(), device_resident=True)
    with pytest.raises(ValueError, match=rf"{what}.*device_resident=True.*leave device_resident"):
        change(dataset)


def test_columns_that_no_device_can_hold_are_refused():
    names = {"name": np.array(["a", "b"]), "x": np.zeros(2, np.float32)}
    dataset = Dataset.from_arrays(names, device_resident=True)
    with pytest.raises(ValueError, match=r"features\['name'\] holds strings"):
        dataset.source(2, host_columns=True)
