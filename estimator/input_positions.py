"""Where the inputs of all processes stand, as one entry of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from input_pipeline import RegroupedInputError

_KIND = "processes"


def joined(positions: Sequence[Any]) -> Any:
    """Returns what to save of the positions of each process (JSON).

    Those that are equal are saved once: they count the examples of the whole job, so that any
    number of processes can go on from there. Where one process reads for all, only it has one.
    """
    known = [position for position in positions if position is not None]
    if len(known) <= 1 or all(position == known[0] for position in known):
        return known[0] if known else None
    return {"kind": _KIND, "positions": list(positions)}


def of_process(position: Any, index: int, count: int) -> Any:
    """Returns where process `index` of `count` goes on.

    Args:
      position: as it was saved.
      index: of the process.
      count: of those that read an input of their own.

    Raises:
      RegroupedInputError: it is that of another number of processes.
    """
    if not isinstance(position, dict) or position.get("kind") != _KIND:
        return position
    positions = position["positions"]
    if len(positions) != count:
        raise RegroupedInputError(
            f"The input was read by {len(positions)} processes, each with a position of its own, "
            f"and now by {count}. Use a Dataset, which counts the examples of all; or as many "
            "processes."
        )
    return positions[index]
