"""A file that tells other processes that training has come to its end."""

from __future__ import annotations

import json
import os

from etils import epath

_FILE = "training_ended.json"


def mark(model_dir: epath.Path, step: int) -> None:
    """Says that training has ended at `step`, whose checkpoint is whole. Whole or absent itself."""
    model_dir.mkdir(parents=True, exist_ok=True)
    staged = model_dir / f".{_FILE}.{os.getpid()}"
    staged.write_text(json.dumps({"global_step": step}) + "\n")
    staged.replace(model_dir / _FILE)


def clear(model_dir: epath.Path) -> None:
    """Says that training goes on."""
    (model_dir / _FILE).unlink(missing_ok=True)


def ended_at(model_dir: epath.Path) -> int | None:
    """Returns the step at which training ended; None while it goes on, or was cut off by an error
    or a signal."""
    try:
        text = (model_dir / _FILE).read_text()
    except FileNotFoundError:
        return None
    return json.loads(text)["global_step"]
