"""Examples from tfds.data_source, which needs no TensorFlow."""

from __future__ import annotations

from typing import Any

from input_pipeline.dataset import Dataset


def adapt(data: Any, batch_size: int) -> Dataset | None:
    """Returns a dataset of the examples of a tfds data source, as dicts of features."""
    # Its base class is in no public module.
    from_tfds = any(base.__module__.startswith("tensorflow_datasets.") for base in type(data).mro())
    if from_tfds and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Dataset.from_source(data)
    return None
