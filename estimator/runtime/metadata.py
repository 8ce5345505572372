"""What the compiler and the profiler tell about a program."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunMetadata:
    """Cost of a program. What a backend does not tell is None.

    Attributes:
      compile_secs: seconds that tracing and compiling took, when they were done.
      flops: floating point operations of one run, as the compiler counts them: a loop of
        unknown length as one round.
      bytes_accessed: bytes of memory that one run reads and writes, counted likewise.
      peak_memory_bytes: the most memory that one run takes on each device.
      aliased_bytes: bytes of donated feeds whose memory the outputs take over.
      hlo_text: the program after all of the compiler's passes.
      op_secs: seconds by operation, over all devices, of what ran while a run was traced;
        None for a run that was not.
    """

    compile_secs: float
    flops: float | None
    bytes_accessed: float | None
    peak_memory_bytes: int | None
    aliased_bytes: int | None
    hlo_text: str | None
    op_secs: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
    """A run that was asked for its metadata.

    Attributes:
      outputs: what the program returned, or the part that was fetched.
      metadata: about the program and this run.
    """

    outputs: Any
    metadata: RunMetadata


def describe(compiled: jax.stages.Compiled, compile_secs: float) -> RunMetadata:
    """Returns what the compiler tells about a program."""
    cost = compiled.cost_analysis() or {}
    memory = compiled.memory_analysis()
    return RunMetadata(
        compile_secs=compile_secs,
        flops=cost.get("flops"),
        bytes_accessed=cost.get("bytes accessed"),
        peak_memory_bytes=getattr(memory, "peak_memory_in_bytes", None),
        aliased_bytes=getattr(memory, "alias_size_in_bytes", None),
        hlo_text=compiled.as_text(),
    )


def op_secs(trace_dir: Path) -> dict[str, float]:
    """Returns seconds by operation of the newest trace that `jax.profiler` wrote there.

    Raises:
      FileNotFoundError: there is no trace.
    """
    traces = list(trace_dir.rglob("*.xplane.pb"))
    if not traces:
        raise FileNotFoundError(f"jax.profiler left no *.xplane.pb in {trace_dir}.")
    newest = max(traces, key=lambda file: file.stat().st_mtime_ns)
    nanoseconds: Counter[str] = Counter()
    for plane in jax.profiler.ProfileData.from_file(str(newest)).planes:
        for line in plane.lines:
            for event in line.events:
                operation = dict(event.stats).get("hlo_op")
                if operation is not None:
                    nanoseconds[str(operation)] += event.duration_ns
    return {name: total / 1e9 for name, total in nanoseconds.most_common()}
