"""The process of one contestant: makes it, then measures whenever it is asked to.

    python -m benchmarks.worker mlp scan

Answers in JSON, a line each: first `{"versions": {...}}` when it is ready, or `{"missing": ...}`
if a library is not installed; then `{"measured": ...}` for each line of standard input, which
holds the seconds that the measurement is to last. Ends with its input.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
from typing import Any, TextIO

LIBRARIES = {
    "flax": "flax",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "keras": "keras",
    "lightning": "lightning",
    "numpy": "numpy",
    "optax": "optax",
    "orbax": "orbax-checkpoint",
    "tensorflow": "tensorflow-cpu",
    "tensorflow_estimator": "tensorflow-estimator",
    "torch": "torch",
}
"""Modules whose versions matter, and the distributions that they come in."""

OPTIONAL = {"keras", "lightning", "tensorflow", "torch"}


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that this process has imported."""
    return {
        distribution: importlib.metadata.version(distribution)
        for module, distribution in LIBRARIES.items()
        if module in sys.modules
    }


def answers_apart() -> TextIO:
    """Returns a file for the answers; what libraries print goes to standard error from now on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def main(contest: str, name: str) -> None:
    answers = answers_apart()

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers)

    contestant = importlib.import_module(f"benchmarks.{contest}").CONTEST.contestant(name)
    try:
        peer = contestant.make()
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        answer(missing=f"{error.name} is not installed")
        return
    try:
        answer(versions=versions())
        for line in sys.stdin:
            answer(measured=peer.measure(float(line)))
    finally:
        peer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
