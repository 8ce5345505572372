"""Batches of arrays that wait on the devices: only the numbers of their rows are read here."""

from __future__ import annotations

import numpy as np

from input_pipeline.arrays import ArraySource
from input_pipeline.columns import Columns
from input_pipeline.cuts import Cuts
from input_pipeline.order import Order


class ResidentSource(ArraySource):
    """Reads the numbers of the rows that an `ArraySource` of the same arrays would gather.

    Args:
      table: the data.
      order: which rows are read when.
      cuts: where batches end.
    """

    def __init__(self, table: Columns, order: Order, cuts: Cuts):
        numbers = np.arange(len(table), dtype=np.int32)
        super().__init__(Columns.of((numbers, None)), order, cuts)
        self.table = table
        self._spec = table.layout.element_spec(cuts.size)
