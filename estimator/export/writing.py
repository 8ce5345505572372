"""Writes an exported model: a whole directory, or none."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import jax

from estimator.export import variables as variables_io
from estimator.export.manifest import (
    ASSETS_DIR,
    PROGRAMS_DIR,
    VARIABLES_DIR,
    Manifest,
    SignatureSpec,
    installed_versions,
)
from estimator.export.packages import require_flatbuffers
from estimator.export.programs import Program, ServingFn, lower
from estimator.export.serving_input import ServingInput
from estimator.export.variables import HostVariables

PLATFORMS = ("cpu", "cuda", "tpu")
_KNOWN_PLATFORMS = (*PLATFORMS, "rocm")
_TEMP_PREFIX = ".tmp-"


def write(
    base_dir: str | os.PathLike[str],
    fn: ServingFn,
    variables: Any,
    inputs: ServingInput,
    *,
    global_step: int | None = None,
    assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
    platforms: Sequence[str] = PLATFORMS,
    clock: Callable[[], float] = time.time,
) -> Path:
    """Writes a model to `<base_dir>/<seconds since 1970>/`, where `load` finds it.

    The directory appears at once and whole; an export that fails leaves none.

    Args:
      base_dir: directory of the exports of a model, on a local or mounted disk.
      fn: pure `(variables, features) -> {signature name: ExportOutput}` of JAX operations. A
        signature that is the only one is also the default one, "serving_default".
      variables: pytree of arrays, the first argument of `fn`.
      inputs: what the model is fed with, see `serving_input`.
      global_step: training steps behind the variables; for the record.
      assets_extra: path below `assets.extra/` -> file or directory to copy there.
      platforms: what the programs are lowered for: "cpu", "cuda", "rocm", "tpu".
      clock: returns the seconds since 1970 that name the directory; if taken, the next free
        second does.

    Returns:
      The directory.

    Raises:
      RuntimeError: called in another process of the job than process 0.
      ImportError: the package `flatbuffers` is missing.
      ValueError: an argument that cannot be, or outputs that cannot be served.
      FileNotFoundError: a source in `assets_extra` does not exist.
      OSError: `base_dir` cannot be written.
      Exception: what tracing `fn` raises, with a note on what an export asks for.
    """
    if jax.process_index() != 0:
        raise RuntimeError(
            f"write was called in process {jax.process_index()} of {jax.process_count()}, and an "
            "export is written by process 0. Call it there only: if jax.process_index() == 0."
        )
    require_flatbuffers()
    _check_platforms(platforms)
    assets = _checked_assets(assets_extra or {})
    if "://" in os.fspath(base_dir):
        raise ValueError(
            f"base_dir={os.fspath(base_dir)!r} is an address, and exports go to a local or mounted "
            "disk. Export there, then copy the directory."
        )
    base = Path(base_dir)
    with _staging(base) as staging:
        host_variables = HostVariables.fetch(variables)
        programs = lower(fn, host_variables, inputs, platforms)
        signatures = _write_programs(staging, programs, inputs)
        variables_io.save(staging / VARIABLES_DIR, host_variables.arrays)
        _copy_assets(staging / ASSETS_DIR, assets)
        now = clock()
        Manifest(
            created=datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(),
            global_step=global_step,
            versions=installed_versions(),
            platforms=tuple(platforms),
            variables=host_variables.specs,
            signatures=signatures,
        ).write(staging)
        return _publish(staging, base, int(now))


def _check_platforms(platforms: Sequence[str]) -> None:
    if isinstance(platforms, str) or not platforms or set(platforms) - set(_KNOWN_PLATFORMS):
        raise ValueError(
            f"platforms={platforms!r}; expected a tuple of {', '.join(_KNOWN_PLATFORMS)}. "
            "A GPU is 'cuda' or 'rocm'."
        )


def _checked_assets(assets: Mapping[str, str | os.PathLike[str]]) -> dict[PurePosixPath, Path]:
    checked: dict[PurePosixPath, Path] = {}
    for name, source in assets.items():
        target = PurePosixPath(name)
        if target.is_absolute() or ".." in target.parts or not target.parts:
            raise ValueError(
                f"assets_extra has the destination {name!r}; expected a relative path that stays "
                f"below {ASSETS_DIR}/, such as 'vocabulary.txt'."
            )
        if not Path(source).exists():
            raise FileNotFoundError(
                f"assets_extra[{name!r}]: there is no file {os.fspath(source)!r}."
            )
        for other in checked:
            if target == other or target in other.parents or other in target.parents:
                raise ValueError(
                    f"assets_extra has the destinations {str(other)!r} and {str(target)!r}, which "
                    "overwrite each other."
                )
        checked[target] = Path(source)
    return checked


@contextlib.contextmanager
def _staging(base: Path) -> Iterator[Path]:
    """Makes a directory to write in, next to where the export will be, and removes it if the
    body fails. What a killed export leaves behind bears a name that no reader looks at."""
    staging = base / f"{_TEMP_PREFIX}{uuid.uuid4().hex}"
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise type(error)(
            error.errno, f"base_dir={str(base)!r} cannot be written: {error.strerror}"
        ) from error
    try:
        yield staging
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)  # the first error is the one to see
        raise


def _write_programs(
    staging: Path, programs: Mapping[str, Program], inputs: ServingInput
) -> dict[str, SignatureSpec]:
    (staging / PROGRAMS_DIR).mkdir()
    files: dict[int, str] = {}  # a signature with two names has one file
    signatures = {}
    for name, program in programs.items():
        file = files.get(id(program))
        if file is None:
            file = f"{PROGRAMS_DIR}/{urllib.parse.quote(name, safe='')}.bin"
            files[id(program)] = file
            (staging / file).write_bytes(program.serialized)
        signatures[name] = SignatureSpec(
            method=program.method, program=file, inputs=inputs.specs, outputs=program.outputs
        )
    return signatures


def _copy_assets(directory: Path, assets: Mapping[PurePosixPath, Path]) -> None:
    for name, source in assets.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)


def _publish(staging: Path, base: Path, second: int) -> Path:
    while True:
        target = base / str(second)
        if not target.exists():
            try:
                return staging.rename(target)
            except OSError:
                # Another export may have taken the name since; anything else is an error.
                if not target.exists():
                    raise
        second += 1
