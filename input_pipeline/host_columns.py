"""Columns of features that hold no numbers, such as names and file paths, and stay on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from input_pipeline.dtypes import is_numeric


class HostColumns:
    """Takes columns that hold no numbers out of batches; which ones, the first batch decides."""

    def __init__(self):
        self._names: list[str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns that stay, once there was a batch."""
        return tuple(self._names or ())

    def take_out(self, pair: tuple[Any, Any]) -> tuple[tuple[Any, Any], dict[str, np.ndarray]]:
        """Returns (features, labels) without them, and them by name.

        Args:
          pair: (features, labels). Only a features dict has columns; others stay as they are.

        Raises:
          ValueError: a column that the first batch had is missing.
        """
        features, labels = pair
        if not isinstance(features, Mapping):
            return pair, {}
        if self._names is None:
            self._names = [name for name, column in features.items() if _stays(column)]
        missing = [name for name in self._names if name not in features]
        if missing:
            raise ValueError(
                f"features[{missing[0]!r}] is missing in a batch. The first batch had it; it must "
                "be in all or none."
            )
        rest = {name: column for name, column in features.items() if name not in self._names}
        return (rest, labels), {name: _as_array(features[name]) for name in self._names}


def _stays(column: Any) -> bool:
    if isinstance(column, list):
        return bool(column) and all(isinstance(entry, str | bytes) for entry in column)
    dtype = getattr(column, "dtype", None)
    return dtype is not None and not is_numeric(np.asarray(column[:0]).dtype)


def _as_array(column: Any) -> np.ndarray:
    return np.array(column, object) if isinstance(column, list) else np.asarray(column)
