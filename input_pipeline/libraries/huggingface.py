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
        self._dtypes = {name: _dtype_of(feature) for name, feature in data.features.items()}
        self.num_examples = len(data)

    def example(self, value: int) -> Any:
        return self._with_dtypes(self._rows[value])

    def rows(self, wanted: np.ndarray | slice) -> Any:
        return self._with_dtypes(self._rows[wanted])

    def _with_dtypes(self, columns: dict[str, Any]) -> dict[str, Any]:
        # The numpy format makes 64 bit integers of all integers, images included.
        return {name: _cast(column, self._dtypes[name]) for name, column in columns.items()}


def _cast(column: Any, dtype: np.dtype | None) -> Any:
    # Lists of different lengths are an array of objects: the caller says what is wrong with it.
    return column if dtype is None or column.dtype == object else column.astype(dtype, copy=False)


def _dtype_of(feature: Any) -> np.dtype | None:
    """Returns the dtype of the numbers in a column, or None if it may hold something else."""
    while getattr(feature, "feature", None) is not None:  # of a list
        feature = feature.feature
    name = getattr(feature, "dtype", None)
    is_number = isinstance(name, str) and name.rstrip("0123456789") in ("int", "uint", "float")
    return np.dtype(name) if is_number else None
