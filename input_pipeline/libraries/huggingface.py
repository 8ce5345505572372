"""Examples from Hugging Face datasets, read many rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from input_pipeline.dataset import Dataset
from input_pipeline.iterables import IterableReader
from input_pipeline.reader import BatchReader
from input_pipeline.roots import TableRoot


def adapt(data: Any, batch_size: int) -> BatchReader | Dataset | None:
    """Returns what reads a datasets.Dataset or IterableDataset; columns are a dict of features.

    Raises:
      TypeError: `data` is a dict of splits.
    """
    import datasets

    if not hasattr(datasets, "IterableDatasetDict"):  # a module of the user's own
        return None
    if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise TypeError(
            f"input_fn returned a {type(data).__name__} with the splits {sorted(data)}. Return "
            "one of them."
        )
    if isinstance(data, datasets.Dataset):
        return Dataset.from_root(HuggingFaceRoot(data))
    if isinstance(data, datasets.IterableDataset):
        arrays = data.with_format("numpy")
        return IterableReader(lambda: arrays.iter(batch_size), batch_size=batch_size)
    return None


class HuggingFaceRoot(TableRoot):
    """The rows of a datasets.Dataset, as numpy arrays."""

    def __init__(self, data: Any):
        self._rows = data.with_format("numpy")
        self.num_examples = len(data)

    def example(self, value: int) -> Any:
        return self._rows[value]

    def rows(self, wanted: np.ndarray | slice) -> Any:
        return self._rows[wanted]
