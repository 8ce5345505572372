"""The arrays of datasets that stay on the devices."""

from __future__ import annotations

import weakref
from typing import Any

import jax

from estimator.mesh import Placement
from input_pipeline import Columns


class DeviceTables:
    """Puts the arrays of a dataset on every device, once for as long as the dataset exists.

    Args:
      placement: the devices.
    """

    def __init__(self, placement: Placement):
        self._placement = placement
        self._tables: weakref.WeakKeyDictionary[Columns, tuple[Any, Any]] = (
            weakref.WeakKeyDictionary()
        )

    def on_devices(self, columns: Columns) -> tuple[Any, Any]:
        """Returns (features, labels) with arrays `[num_examples, ...]` on every device.

        Raises:
          ValueError: a device has less memory left than they need.
        """
        if columns not in self._tables:
            self._check_memory(sum(array.nbytes for array in columns.arrays))
            self._tables[columns] = jax.device_put(columns.pair, self._placement.replicated)
        return self._tables[columns]

    def _check_memory(self, needed: int) -> None:
        for device in self._placement.mesh.local_devices:
            stats = device.memory_stats() or {}  # a CPU has none
            if "bytes_limit" not in stats:
                continue
            left = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
            if needed > left:
                raise ValueError(
                    f"Dataset.from_arrays(device_resident=True): a copy of the arrays takes "
                    f"{_gigabytes(needed)} on each device, and {device} has {_gigabytes(left)} "
                    "left. Leave device_resident out: then a few batches are there at a time."
                )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
