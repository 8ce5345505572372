"""What evaluations measured, on disk: one line of JSON for each, for whoever comes later."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

logger = logging.getLogger(__name__)

RESULTS_FILE = "results.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalResult:
    """The numbers of one evaluation.

    Attributes:
      global_step: of the checkpoint that was evaluated.
      values: `loss` and the metrics that are single numbers, by name; NaN and infinity included.
      wall_time: when it ended, in seconds since 1970.
    """

    global_step: int
    values: Mapping[str, float]
    wall_time: float


def eval_dir(model_dir: str | os.PathLike[str], name: str | None = None) -> epath.Path:
    """Returns the folder of the evaluations `name` of the model in `model_dir`."""
    return epath.Path(model_dir) / ("eval" if name is None else f"eval_{name}")


def append_eval_result(
    folder: str | os.PathLike[str],
    global_step: int,
    values: Mapping[str, Any],
    clock: Callable[[], float] = time.time,
) -> None:
    """Adds a line to `<folder>/results.jsonl` that is on disk when this returns.

    Several processes may add at once: a line is one write, at the end of the file. One that a
    kill has cut short stays alone on its line, and is not read.

    Args:
      folder: is made if it is not there; see `eval_dir`.
      global_step: of the checkpoint.
      values: by name; what is no single number is left out.
      clock: returns seconds since 1970.
    """
    path = epath.Path(folder) / RESULTS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    line = json.dumps({"global_step": global_step, "wall_time": clock(), "values": numbers})
    if "://" in str(path):  # object stores replace files, and do not add to them
        path.write_text((path.read_text() if path.exists() else "") + line + "\n")
        return
    with open(path, "a+b", buffering=0) as file:
        file.write((("" if _ends_whole(file) else "\n") + line + "\n").encode())
        os.fsync(file.fileno())


def _ends_whole(file: Any) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def read_eval_results(folder: str | os.PathLike[str]) -> list[EvalResult]:
    """Returns what the evaluations in `folder` measured, in the order of their global steps.

    Of a step that was evaluated again, the last result counts. Without a file there are none.

    Args:
      folder: see `eval_dir`.
    """
    path = epath.Path(folder) / RESULTS_FILE
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    lines.pop()  # what no newline ends yet is still being written, or was cut short
    results: dict[int, EvalResult] = {}
    for number, line in enumerate(lines, start=1):
        try:
            result = EvalResult(**json.loads(line))
        except (ValueError, TypeError):
            logger.warning("%s:%d is no whole result and is left out.", path, number)
        else:
            results[result.global_step] = result
    return [results[step] for step in sorted(results)]
