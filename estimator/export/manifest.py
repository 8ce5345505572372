"""What an exported directory holds: its layout, and the file that describes the model."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib

from estimator.export.tensor_spec import TensorSpec

LAYOUT_VERSION = 1
MANIFEST_FILE = "manifest.json"
VARIABLES_DIR = "variables"
PROGRAMS_DIR = "programs"
ASSETS_DIR = "assets.extra"
_DISTRIBUTION = "jax-estimator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SignatureSpec:
    """One way to call an exported model.

    Attributes:
      method: "predict", "classify" or "regress".
      program: file of the program, relative to the exported directory.
      inputs: name -> spec `[batch, ...]`.
      outputs: name -> spec `[batch, ...]`.
    """

    method: str
    program: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of an exported model.

    Attributes:
      created: when it was exported, ISO 8601 in UTC.
      global_step: training steps behind the variables, or None if not known.
      versions: package -> version that wrote it; None for one that was not installed.
      platforms: what it runs on, as `jax.export` names them: "cpu", "cuda", "rocm", "tpu".
      variables: name -> spec.
      signatures: name -> how to call it.
    """

    created: str
    global_step: int | None
    versions: Mapping[str, str | None]
    platforms: tuple[str, ...]
    variables: Mapping[str, TensorSpec]
    signatures: Mapping[str, SignatureSpec]

    def write(self, directory: Path) -> None:
        """Writes the manifest into `directory`."""
        value = {
            "layout_version": LAYOUT_VERSION,
            "created": self.created,
            "global_step": self.global_step,
            "versions": dict(self.versions),
            "platforms": list(self.platforms),
            "signatures": {
                name: {
                    "method": signature.method,
                    "program": signature.program,
                    "inputs": _specs_to_json(signature.inputs),
                    "outputs": _specs_to_json(signature.outputs),
                }
                for name, signature in self.signatures.items()
            },
            "variables": _specs_to_json(self.variables),
        }
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        (directory / MANIFEST_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Reads the manifest of an exported directory.

        Raises:
          ValueError: the file is damaged, or of a layout that this version does not know.
        """
        file = directory / MANIFEST_FILE
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
            layout_version, versions = value["layout_version"], value["versions"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is damaged, or no manifest of an export: {error!r}."
            ) from error
        if layout_version != LAYOUT_VERSION:
            raise ValueError(
                f"{directory} has the layout version {layout_version}, written by {_DISTRIBUTION} "
                f"{versions.get(_DISTRIBUTION)}; the {_DISTRIBUTION} that is installed here, "
                f"{installed_versions()[_DISTRIBUTION]}, reads version {LAYOUT_VERSION}. "
                f"Install the other one here, or export again."
            )
        try:
            return cls(
                created=value["created"],
                global_step=value["global_step"],
                versions=versions,
                platforms=tuple(value["platforms"]),
                variables=_specs_from_json(value["variables"]),
                signatures={
                    name: SignatureSpec(
                        method=signature["method"],
                        program=signature["program"],
                        inputs=_specs_from_json(signature["inputs"]),
                        outputs=_specs_from_json(signature["outputs"]),
                    )
                    for name, signature in value["signatures"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is damaged: {error!r}.") from error


def installed_versions() -> dict[str, str | None]:
    """Returns package -> version of what exports depend on, as installed here."""
    try:
        own = importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        own = None
    return {_DISTRIBUTION: own, "jax": jax.__version__, "jaxlib": jaxlib.__version__}


def _specs_to_json(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    return {name: spec.to_json() for name, spec in specs.items()}


def _specs_from_json(value: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {name: TensorSpec.from_json(spec) for name, spec in value.items()}
