"""What the tensors of one training step look like, as a table."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence


class Kind(enum.StrEnum):
    """What a tensor of a step is."""

    INPUT = "input"
    VARIABLE = "variable"
    OUTPUT = "output"
    LOSS = "loss"
    OUTPUT_GRADIENT = "output gradient"
    GRADIENT = "gradient"
    UPDATED = "updated"


_MEANING = {
    Kind.INPUT: "the input {}",
    Kind.VARIABLE: "the variable {}, before the step",
    Kind.OUTPUT: "the output of {}",
    Kind.LOSS: "the {}",
    Kind.OUTPUT_GRADIENT: "the gradient of the output of {}",
    Kind.GRADIENT: "the gradient of {}",
    Kind.UPDATED: "{} after the update",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorStats:
    """What one tensor looks like.

    Attributes:
      kind: what it is.
      name: of the layer, parameter or feature, such as "Dense_0/kernel".
      shape: of the array.
      dtype: likewise.
      norm: the square root of the sum of the squares of its finite numbers.
      largest: the largest absolute value of them.
      nan: fraction of its numbers that are NaN, 0 to 1.
      inf: fraction that are infinite.
    """

    kind: Kind
    name: str
    shape: tuple[int, ...]
    dtype: str
    norm: float
    largest: float
    nan: float
    inf: float

    @property
    def finite(self) -> bool:
        """Whether all its numbers are."""
        return self.nan == 0 and self.inf == 0

    def __str__(self) -> str:
        array = f"{self.dtype}{list(self.shape)}"
        line = (
            f"{self.kind:<16} {self.name:<40} {array:<24} norm {self.norm:<12.4g} "
            f"max {self.largest:<12.4g}"
        )
        return line if self.finite else f"{line} NaN {self.nan:.2%}, Inf {self.inf:.2%}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorReport:
    """What the tensors of one training step look like; `print` it for a table.

    Attributes:
      step: global step after it.
      tensors: in the order in which the step makes them: inputs, variables, the outputs of the
        layers, the loss, the gradients from the last layer to the first, and the parameters
        after the update. Arrays of whole numbers are left out.
      operation: the first operation that gave a NaN, with its place in the code, or None.
    """

    step: int
    tensors: Sequence[TensorStats]
    operation: str | None

    @property
    def first_bad(self) -> TensorStats | None:
        """The first tensor that holds a NaN or an infinite number, or None."""
        return next((tensor for tensor in self.tensors if not tensor.finite), None)

    @property
    def verdict(self) -> str:
        """Where the step went wrong, in words."""
        bad = self.first_bad
        if bad is None:
            return f"All tensors of step {self.step} are finite."
        made = "" if self.operation is None else f" The first NaN: {self.operation}"
        return (
            f"The first tensor of step {self.step} that is not finite is "
            f"{_MEANING[bad.kind].format(bad.name)}: {bad.nan:.2%} of it are NaN, {bad.inf:.2%} "
            f"infinite.{made}"
        )

    def __str__(self) -> str:
        first = self.first_bad
        lines = [f"{'>' if one is first else ' '} {one}".rstrip() for one in self.tensors]
        return "\n".join([self.verdict, *lines])
