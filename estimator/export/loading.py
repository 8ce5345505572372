"""Loads an exported model and calls it, without the Python code that it was made from."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from estimator.export import variables as variables_io
from estimator.export.feeds import check_feeds
from estimator.export.manifest import (
    ASSETS_DIR,
    MANIFEST_FILE,
    VARIABLES_DIR,
    Manifest,
    SignatureSpec,
    installed_versions,
)
from estimator.export.tensor_spec import narrow
from estimator.runtime import Session


class LoadedSignature:
    """One signature of a loaded model: call it with features.

    Attributes:
      name: of the signature.
      method: "predict", "classify" or "regress".
      inputs: name -> spec `[batch, ...]`.
      outputs: name -> spec `[batch, ...]`.
    """

    def __init__(
        self, name: str, spec: SignatureSpec, run: Callable[[Mapping[str, np.ndarray]], Any]
    ):
        self.name = name
        self.method = spec.method
        self.inputs = dict(spec.inputs)
        self.outputs = dict(spec.outputs)
        self._run = run

    def __call__(self, features: Any) -> dict[str, np.ndarray]:
        """Computes the outputs for a batch of any size.

        The first call with a batch size compiles for it.

        Args:
          features: arrays `[batch, ...]` in the structure that was exported, or flat, by name.

        Returns:
          Name -> array `[batch, ...]`; empty arrays for a batch of no rows.

        Raises:
          TypeError: a feature of a dtype that cannot be cast without loss.
          ValueError: features that do not fit `inputs`.
        """
        feeds, rows = check_feeds(features, self.inputs, self.name)
        if rows == 0:
            return {name: spec.zeros() for name, spec in self.outputs.items()}
        return jax.device_get(self._run(feeds))


class LoadedModel:
    """An exported model, ready to be called: `model["serving_default"](features)`.

    Attributes:
      path: the directory that it was loaded from.
      manifest: what the model says about itself.
      signatures: name -> signature.
    """

    def __init__(self, path: Path, manifest: Manifest, signatures: Mapping[str, LoadedSignature]):
        self.path = path
        self.manifest = manifest
        self.signatures = dict(signatures)

    @property
    def assets_dir(self) -> Path:
        """Where the files of `assets_extra` are; absent if there were none."""
        return self.path / ASSETS_DIR

    def __getitem__(self, name: str) -> LoadedSignature:
        """Returns a signature.

        Raises:
          KeyError: there is none of that name.
        """
        if name not in self.signatures:
            raise KeyError(f"No signature {name!r} in {self.path}; it has {list(self.signatures)}.")
        return self.signatures[name]


def load(path: str | os.PathLike[str], device: Any = None) -> LoadedModel:
    """Loads an exported model.

    Args:
      path: an exported directory, or the one that holds the exports of a model, of which the
        newest is loaded.
      device: a `jax.Device`, where to keep the variables and run; JAX's default device if None.

    Raises:
      FileNotFoundError: there is no export.
      ValueError: the export is damaged, made for other platforms, or by a version that is too
        new for those installed here; the message names both.
    """
    directory = find(path)
    manifest = Manifest.read(directory)
    if device is None:
        (device,) = jnp.zeros(()).devices()
    _check_platform(directory, manifest, device)
    _check_64_bit(directory, manifest)
    arrays = variables_io.restore(directory / VARIABLES_DIR, manifest.variables)
    variables = jax.device_put(arrays, device)
    session = Session()
    programs = {
        file: functools.partial(_load_program(session, directory / file, manifest), variables)
        for file in dict.fromkeys(spec.program for spec in manifest.signatures.values())
    }
    signatures = {
        name: LoadedSignature(name, spec, programs[spec.program])
        for name, spec in manifest.signatures.items()
    }
    return LoadedModel(directory, manifest, signatures)


def find(path: str | os.PathLike[str]) -> Path:
    """Returns `path` if it is an exported directory, else the newest one in it.

    Raises:
      FileNotFoundError: it is neither.
    """
    path = Path(path)
    if (path / MANIFEST_FILE).is_file():
        return path
    exports = [child for child in path.glob("*/") if _is_export(child)]
    if not exports:
        raise FileNotFoundError(
            f"{os.fspath(path)!r} is no exported model, nor a directory that holds one: there is "
            f"no {MANIFEST_FILE} in it, nor in a subdirectory named by a number."
        )
    return max(exports, key=lambda child: int(child.name))


def platform_of(device: Any) -> str:
    """Returns the platform of a device as `jax.export` names it: a GPU is "cuda" or "rocm"."""
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version else "cuda"


def _is_export(directory: Path) -> bool:
    return directory.name.isdecimal() and (directory / MANIFEST_FILE).is_file()


def _check_platform(directory: Path, manifest: Manifest, device: Any) -> None:
    platform = platform_of(device)
    if platform not in manifest.platforms:
        raise ValueError(
            f"{directory} was exported for the platforms {', '.join(manifest.platforms)}, and "
            f"{device} is of the platform {platform}. Export with platforms=({platform!r}, ...), "
            "or load with device= one of the others."
        )


def _check_64_bit(directory: Path, manifest: Manifest) -> None:
    tensors = [*manifest.variables.items()]
    for signature in manifest.signatures.values():
        tensors += [*signature.inputs.items(), *signature.outputs.items()]
    for name, spec in tensors:
        if narrow(spec.dtype) != spec.dtype:
            raise ValueError(
                f"{directory} was exported with 64-bit types ({name!r} is {spec}), and they are "
                'off here. Turn them on: jax.config.update("jax_enable_x64", True)'
            )


def _load_program(session: Session, file: Path, manifest: Manifest) -> Callable[..., Any]:
    here, there = installed_versions(), manifest.versions
    try:
        exported = jax.export.deserialize(bytearray(file.read_bytes()))
        if there != here:
            exported.mlir_module()  # else a program that is too new would fail in the first call
    except Exception as error:
        raise ValueError(
            f"{file} cannot be read. It was written with jax {there.get('jax')} and jaxlib "
            f"{there.get('jaxlib')}; here are jax {here['jax']} and jaxlib {here['jaxlib']}. JAX "
            "reads what was written up to 6 months before or 3 weeks after it. Unless the file is "
            "damaged, install the jax that wrote it, or export again."
        ) from error
    return session.program(exported.call)
