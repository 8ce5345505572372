"""Batches from tf.data, as numpy arrays that share TensorFlow's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from input_pipeline.iterables import CountingReader
from input_pipeline.reader import BatchReader


def adapt(data: Any, batch_size: int) -> BatchReader | None:
    """Returns a reader of a tf.data.Dataset of batches.

    Raises:
      ValueError: the dataset is not batched.
    """
    import tensorflow as tf

    if not isinstance(data, tf.data.Dataset):
        return None
    for spec in tf.nest.flatten(data.element_spec):
        if getattr(spec, "shape", None) is not None and spec.shape.rank == 0:
            raise ValueError(
                f"The tf.data.Dataset is not batched: its elements are {data.element_spec}. Call "
                "batch(params['batch_size']) on it."
            )
    cardinality = int(data.cardinality())
    return TfReader(
        lambda start: _batches(data, start),
        batch_size=batch_size,
        length=cardinality if cardinality >= 0 else None,
    )


class TfReader(CountingReader):
    """Counts batches, and lets tf.data skip. With a shuffle that has no seed, and so no order
    that could be found again, no position is exact."""

    seeks_by_reading = True


def _batches(data: Any, start: int) -> Iterator[Any]:
    return (data.skip(start) if start else data).as_numpy_iterator()
