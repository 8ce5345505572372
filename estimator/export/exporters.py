"""Exports that are made behind evaluations: the newest, the best, the final one."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from estimator.export.manifest import ASSETS_DIR, MANIFEST_FILE, Manifest
from estimator.export.packages import require_flatbuffers
from estimator.export.serving_input import ServingInput

logger = logging.getLogger(__name__)

METRICS_ASSET = "metrics.json"
"""Below `assets.extra/` of an export: what was measured on its checkpoint."""

Metrics = Mapping[str, Any]


class Exports(Protocol):
    """What an exporter asks of an Estimator."""

    @property
    def model_dir(self) -> str: ...

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input: ServingInput,
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
        checkpoint_path: str | None = None,
    ) -> str: ...


class Exporter:
    """Decides which of the evaluated checkpoints are exported. Override `export` or `finish`.

    Args:
      serving_input: what the exported model is fed with: `est.export.serving_input(...)`.
      name: of its folder, `<model_dir>/export/<name>`; unlike those of other exporters.
      assets_extra: as in `Estimator.export_saved_model`.
      exports_to_keep: newest exports to keep in the folder; None keeps all.

    Raises:
      ImportError: the package  is missing: said here, and not after the training.
      TypeError, ValueError: an argument is none of the above.
    """

    def __init__(
        self,
        serving_input: ServingInput,
        *,
        name: str,
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
        exports_to_keep: int | None = None,
    ):
        require_flatbuffers()
        if not isinstance(serving_input, ServingInput):
            raise TypeError(
                f"serving_input must come from est.export.serving_input(features), got "
                f"{type(serving_input).__name__}."
            )
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise ValueError(f"name must be the name of a folder, got {name!r}.")
        if exports_to_keep is not None and (
            isinstance(exports_to_keep, bool)
            or not isinstance(exports_to_keep, int)
            or exports_to_keep < 1
        ):
            raise ValueError(
                f"exports_to_keep must be a positive int, or None for all, got {exports_to_keep!r}."
            )
        self.name = name
        self._serving_input = serving_input
        self._assets_extra = dict(assets_extra or {})
        self._exports_to_keep = exports_to_keep

    def export(self, estimator: Exports, checkpoint_path: str, metrics: Metrics) -> str | None:
        """Called behind each evaluation; after a restart possibly once more for the same one.

        Args:
          estimator: whose checkpoint it is.
          checkpoint_path: of the checkpoint that was evaluated.
          metrics: what `Estimator.evaluate` returned.

        Returns:
          The path of the export, or None if none was made.
        """
        return None

    def finish(self, estimator: Exports, checkpoint_path: str, metrics: Metrics) -> str | None:
        """Called once when training is over, with the last evaluation; arguments as in `export`.

        Returns:
          The path of the export to use, or None if there is none, or `export` has returned it.
        """
        return None

    def folder(self, estimator: Exports) -> Path:
        """Returns where this exporter keeps its exports."""
        return Path(estimator.model_dir) / "export" / self.name

    def kept(self, estimator: Exports) -> list[Path]:
        """Returns the exports in the folder, oldest first."""
        folder = self.folder(estimator)
        found = folder.iterdir() if folder.is_dir() else ()
        exports = [
            path for path in found if path.name.isdigit() and (path / MANIFEST_FILE).exists()
        ]
        return sorted(exports, key=lambda path: int(path.name))

    def _write(self, estimator: Exports, checkpoint_path: str, metrics: Metrics) -> str:
        """Exports the checkpoint, its numbers beside it, and removes what is more than enough.

        A checkpoint that was the last one exported is not exported again.
        """
        kept = self.kept(estimator)
        if kept and Manifest.read(kept[-1]).global_step == metrics["global_step"]:
            return str(kept[-1])
        with tempfile.TemporaryDirectory() as staging:
            numbers = Path(staging) / METRICS_ASSET
            numbers.write_text(json.dumps(_numbers(metrics), indent=2) + "\n")
            path = estimator.export_saved_model(
                str(self.folder(estimator)),
                self._serving_input,
                assets_extra={**self._assets_extra, METRICS_ASSET: numbers},
                checkpoint_path=checkpoint_path,
            )
        if self._exports_to_keep is not None:
            for old in self.kept(estimator)[: -self._exports_to_keep]:
                _remove(old)
        return path


class LatestExporter(Exporter):
    """Exports every checkpoint that is evaluated, and keeps the newest exports.

    Args:
      serving_input, name, assets_extra, exports_to_keep: see `Exporter`.
    """

    def __init__(
        self,
        serving_input: ServingInput,
        *,
        name: str = "latest",
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
        exports_to_keep: int | None = 5,
    ):
        super().__init__(
            serving_input, name=name, assets_extra=assets_extra, exports_to_keep=exports_to_keep
        )

    def export(self, estimator: Exports, checkpoint_path: str, metrics: Metrics) -> str:
        return self._write(estimator, checkpoint_path, metrics)


class FinalExporter(Exporter):
    """Exports the checkpoint at which training is over, however it came to its end.

    Args:
      serving_input, name, assets_extra: see `Exporter`.
    """

    def __init__(
        self,
        serving_input: ServingInput,
        *,
        name: str = "final",
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
    ):
        super().__init__(serving_input, name=name, assets_extra=assets_extra)

    def finish(self, estimator: Exports, checkpoint_path: str, metrics: Metrics) -> str:
        return self._write(estimator, checkpoint_path, metrics)


class BestExporter(Exporter):
    """Exports a checkpoint that is better than all that were exported before it.

    What the best one had is read from the exports themselves, so that a run that was killed and
    started again goes by the same measure. A NaN is never better, and what is as good is not.

    Args:
      serving_input, name, assets_extra, exports_to_keep: see `Exporter`.
      metric: what to judge by: "loss", or a metric by its name.
      mode: "min" if lower is better, "max" if higher is.
      compare_fn: `(best, current) -> bool` says whether the numbers of `current`, by name, are
        better than those of `best`; in the place of `metric` and `mode`.
    """

    def __init__(
        self,
        serving_input: ServingInput,
        *,
        metric: str = "loss",
        mode: str = "min",
        compare_fn: Callable[[dict[str, float], dict[str, float]], bool] | None = None,
        name: str = "best",
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
        exports_to_keep: int | None = 5,
    ):
        super().__init__(
            serving_input, name=name, assets_extra=assets_extra, exports_to_keep=exports_to_keep
        )
        if mode not in ("min", "max"):
            raise ValueError(
                f"mode={mode!r} is not known. Use 'min' if lower is better, 'max' if higher is."
            )
        if compare_fn is not None and not callable(compare_fn):
            raise TypeError(
                f"compare_fn must be a function (best, current) -> bool, got {compare_fn!r}."
            )
        self._metric = metric
        self._mode = mode
        self._compare_fn = compare_fn

    def export(self, estimator: Exports, checkpoint_path: str, metrics: Metrics) -> str | None:
        current = _numbers(metrics)
        if self._compare_fn is None and self._metric not in current:
            raise ValueError(
                f"BestExporter(metric={self._metric!r}): the evaluation has no such number. It has "
                f"{sorted(current)}."
            )
        kept = self.kept(estimator)
        best = _measured(kept[-1]) if kept else None
        if not self._is_better(best, current):
            return None
        logger.info("Step %s is the best so far: %s.", metrics["global_step"], current)
        return self._write(estimator, checkpoint_path, metrics)

    def finish(self, estimator: Exports, checkpoint_path: str, metrics: Metrics) -> str | None:
        kept = self.kept(estimator)
        return str(kept[-1]) if kept else None

    def _is_better(self, best: dict[str, float] | None, current: dict[str, float]) -> bool:
        if self._compare_fn is not None:
            return best is None or self._compare_fn(best, current)
        value = current[self._metric]
        if math.isnan(value) or best is None or self._metric not in best:
            return not math.isnan(value)
        return value < best[self._metric] if self._mode == "min" else value > best[self._metric]


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def _measured(export: Path) -> dict[str, float]:
    try:
        return json.loads((export / ASSETS_DIR / METRICS_ASSET).read_text())
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{export} does not say what was measured on it, so it was not made by a BestExporter. "
            "Move it out of that folder, or give the exporter another name."
        ) from error


def _remove(export: Path) -> None:
    """Removes an export; whoever lists the folder sees it whole or not at all."""
    doomed = export.with_name(f".tmp-removed-{export.name}")
    export.rename(doomed)
    shutil.rmtree(doomed)
