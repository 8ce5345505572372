"""How the numbers of an array are distributed."""

from __future__ import annotations

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Histogram:
    """The finite numbers of an array, counted in bins of equal width.

    Attributes:
      counts: `[bins]`, how many numbers each bin holds.
      minimum: the smallest number, and the lower edge of the first bin.
      maximum: the largest number, and the upper edge of the last bin.
      total: the sum of the numbers.
      squares: the sum of their squares.
      non_finite: how many more are NaN or infinite.
    """

    counts: np.ndarray
    minimum: float
    maximum: float
    total: float
    squares: float
    non_finite: int

    @property
    def upper_edges(self) -> np.ndarray:
        """The upper edge of each bin, `[bins]`."""
        return np.linspace(self.minimum, self.maximum, len(self.counts) + 1)[1:]

    @property
    def norm(self) -> float:
        """The Euclidean norm of the numbers."""
        return math.sqrt(self.squares)
