"""The export of a checkpoint, in one process and without the devices that it was trained on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

from estimator import checkpoints
from estimator.export import PredictOutput, ServingInput
from estimator.export import write as write_export
from estimator.job import Job
from estimator.model import Model
from estimator.spec import ModeKeys


def export(
    job: Job,
    model: Model,
    path: epath.Path,
    base_dir: str | os.PathLike[str],
    serving_input: ServingInput,
    assets_extra: Mapping[str, str | os.PathLike[str]] | None,
) -> str:
    """Writes the model of the checkpoint at `path` for serving, and returns where.

    See `export.write` for what is raised.
    """

    def serve(variables: Any, features: Any) -> Mapping[str, Any]:
        spec, _ = model.apply(
            variables,
            features,
            None,
            ModeKeys.PREDICT,
            step=jax.numpy.int32(0),
            rng=jax.random.key(job.config.seed),
            mask=None,
        )
        if spec.export_outputs is None:
            return {"serving_default": PredictOutput(spec.predictions)}
        return spec.export_outputs

    one_row = {name: spec.with_rows(1) for name, spec in serving_input.specs.items()}
    features = jax.eval_shape(serving_input.features, one_row)
    abstract = job.programs.initializer(ModeKeys.PREDICT, (features, None)).abstract
    written = write_export(
        base_dir,
        serve,
        checkpoints.load_like(path, abstract),
        serving_input,
        global_step=checkpoints.global_step(path),
        assets_extra=assets_extra,
    )
    return str(written)
