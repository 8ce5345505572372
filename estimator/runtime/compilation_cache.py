"""Compiled programs that outlive the process."""

from __future__ import annotations

import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache


def use_compilation_cache(directory: str | os.PathLike[str]) -> None:
    """Keeps everything that this process compiles from now on in `directory`, and takes from
    there what an earlier process left: a second start compiles nothing.

    JAX has one cache for a process, so this holds for all its sessions, and for programs of
    no session.

    Args:
      directory: made if it is not there; a bucket (`gs://...`) is left to JAX.

    Raises:
      OSError: the directory cannot be made.
    """
    path = os.fspath(directory)
    if "://" not in path:
        path = str(Path(path).absolute())
        os.makedirs(path, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", path)
    # By default what compiles within a second is not kept, and a start is many such programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # A process that has compiled before has settled on having no cache, or on another one.
    compilation_cache.reset_cache()
