"""Measures how many batches per second an input_fn alone gives.

    python -m input_pipeline.benchmark my_module:input_fn --batch_size 256

If that is below the steps per second that the model could do, input is the bottleneck.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from input_pipeline.adapters import make_source
from input_pipeline.description import describe
from input_pipeline.source import InputContext, Source


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
    """What was measured.

    Attributes:
      batches: that were read after the first stack.
      examples: real ones in them.
      bytes: of their arrays, padding included.
      secs: wall time for them.
      first_secs: wall time for the first stack, which often opens files and fills buffers.
    """

    batches: int
    examples: int
    bytes: int
    secs: float
    first_secs: float

    def __str__(self) -> str:
        secs = max(self.secs, 1e-9)
        return (
            f"{self.batches / secs:,.1f} batches/s, {self.examples / secs:,.1f} examples/s, "
            f"{self.bytes / secs / 1e6:,.1f} MB/s ({self.batches} batches in {self.secs:.2f} s; "
            f"the first stack took {self.first_secs:.2f} s)"
        )


def measure(
    source: Source, *, secs: float, stack: int, clock: Callable[[], float] = time.perf_counter
) -> Rate:
    """Reads stacks from `source` for a while, or to its end.

    Args:
      source: what is read; it is not closed.
      secs: how long to read after the first stack.
      stack: batches in each stack.
      clock: returns seconds.

    Raises:
      ValueError: there is no batch.
    """
    start = clock()
    if source.read(stack, fill_secs=1.0) is None:
        raise ValueError("input_fn produced no batches.")
    first = now = clock()
    batches = examples = size = 0
    while now - first < secs and (read := source.read(stack, fill_secs=1.0)) is not None:
        batches += read.steps
        examples += int(read.rows.sum())
        leaves = jax.tree_util.tree_leaves((read.features, read.labels))
        size += sum(leaf[: read.steps].nbytes for leaf in leaves)
        now = clock()
    return Rate(
        batches=batches,
        examples=examples,
        bytes=size,
        secs=now - first,
        first_secs=first - start,
    )


def load(name: str) -> Callable[..., Any]:
    """Returns the function that `module:function` names."""
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"Expected module:input_fn, got {name!r}.")
    return getattr(importlib.import_module(module), function)


def call(input_fn: Callable[..., Any], batch_size: int) -> Any:
    """Calls `input_fn`, with `params` if it has such an argument."""
    params = {"batch_size": batch_size, "context": InputContext(batch_size=batch_size)}
    takes_params = "params" in inspect.signature(input_fn).parameters
    return input_fn(params=params) if takes_params else input_fn()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m input_pipeline.benchmark", description="Measures how fast an input_fn is."
    )
    parser.add_argument("input_fn", help="as module:function")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--secs", type=float, default=10.0, help="how long to measure")
    parser.add_argument("--stack", type=int, default=10, help="batches stacked at a time")
    options = parser.parse_args(arguments)
    source = make_source(
        call(load(options.input_fn), options.batch_size),
        batch_size=options.batch_size,
        host_columns=True,
    )
    try:
        print(describe(source))
        print(measure(source, secs=options.secs, stack=options.stack))
    finally:
        source.close()


if __name__ == "__main__":
    sys.path.insert(0, "")  # as `python` does, for modules of the current folder
    main()
