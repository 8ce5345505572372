"""Pads sequences to one of a few lengths, so that there are as few programs as lengths."""

from __future__ import annotations

import bisect
import dataclasses

import numpy as np

from input_pipeline.layout import Layout


@dataclasses.dataclass(frozen=True)
class PadTo:
    """Pads the first dimension of examples with zeros, to the same length within a batch.

    Attributes:
      lengths: allowed lengths, rising. A batch gets the first that holds its longest example.
    """

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.lengths or any(
            isinstance(length, bool) or not isinstance(length, int) or length < 1
            for length in self.lengths
        ):
            raise ValueError(f"pad_to={list(self.lengths)} needs one or more positive ints.")
        object.__setattr__(self, "lengths", tuple(sorted(set(self.lengths))))

    def layout(self, layout: Layout) -> Layout:
        """Returns the layout of examples that may have any length."""
        shapes = tuple((None, *shape[1:]) if shape else shape for shape in layout.shapes)
        return dataclasses.replace(layout, shapes=shapes)

    def padded(
        self, columns: list[list[np.ndarray]], names: tuple[str, ...]
    ) -> list[list[np.ndarray]]:
        """Returns columns whose arrays all have the length that the longest needs.

        Args:
          columns: for each leaf its examples, each `[length, ...]`, or scalars, which stay.
          names: of the leaves.

        Raises:
          ValueError: an example is longer than the greatest allowed length.
        """
        lengths = [max((len(row) for row in column if row.ndim), default=0) for column in columns]
        longest = max(lengths, default=0)
        at = bisect.bisect_left(self.lengths, longest)
        if at == len(self.lengths):
            raise ValueError(
                f"{names[lengths.index(longest)]} has an example of length {longest}, more than "
                f"pad_to={list(self.lengths)} allows. Cut it, or add a length."
            )
        return [[_padded(row, self.lengths[at]) for row in column] for column in columns]


def _padded(row: np.ndarray, length: int) -> np.ndarray:
    if not row.ndim or len(row) == length:
        return row
    padded = np.zeros((length, *row.shape[1:]), row.dtype)
    padded[: len(row)] = row
    return padded
