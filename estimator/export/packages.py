"""What exporting needs beside JAX."""

from __future__ import annotations

import importlib.util


def require_flatbuffers() -> None:
    """Called before any work whose end is an export: training may lie between.

    Raises:
      ImportError: the package `flatbuffers` is missing.
    """
    if importlib.util.find_spec("flatbuffers") is None:
        raise ImportError(
            "Exporting a model needs the package 'flatbuffers', which jax.export serialises with "
            "and plain jax does not bring. Install it: pip install flatbuffers"
        )
