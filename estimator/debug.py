"""Finds where numbers go wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from estimator import checkpoints
from estimator.batches import Batches
from estimator.config import RunConfig
from estimator.mesh import Placement
from estimator.model import Model
from estimator.programs import Programs
from estimator.spec import ModeKeys
from estimator.tensor_report import TensorReport as TensorReport
from estimator.tensor_report import TensorStats as TensorStats
from estimator.tensor_trace import trace_step


def trace_tensors(
    model_fn: Callable[..., Any],
    batch: Any,
    *,
    params: Mapping[str, Any] | None = None,
    model: Any = None,
    config: RunConfig | None = None,
    checkpoint_path: str | os.PathLike[str] | None = None,
) -> TensorReport:
    """Runs one training step and reports norm, largest value and share of NaN and infinities of
    every layer, gradient and parameter, and which of them was the first to go bad.

    Layers are those of linen, inline or in `model`; of other models the inputs, variables, loss
    and gradients are reported, and for all the operation that made the first NaN.

    Args:
      model_fn: as in `Estimator`.
      batch: what input_fn gives: (features, labels), or features alone, arrays `[batch, ...]`.
      params: as in `Estimator`.
      model: as in `Estimator`.
      config: its seed and input settings; a default RunConfig if None.
      checkpoint_path: the state to start from; as it is initialised if None.

    Raises:
      FileNotFoundError: there is no checkpoint at `checkpoint_path`.
      CheckpointMismatchError: it is of another model.
      Whatever model_fn raises, as itself.
    """
    config = RunConfig() if config is None else config
    placement = Placement.make(config.devices)
    features, labels = batch if type(batch) is tuple and len(batch) == 2 else (batch, None)
    made = Model(
        model_fn,
        params=dict(params or {}),
        config=config,
        num_replicas=placement.num_replicas,
        model=model,
    )
    features, labels = jax.tree.map(jax.numpy.asarray, (features, labels))
    spec = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (features, labels)
    )
    initializer = Programs(made, placement, config).initializer(ModeKeys.TRAIN, spec)
    if checkpoint_path is None:
        state = initializer(config.seed)
    else:
        path = checkpoints.existing(Path(checkpoint_path))
        state = checkpoints.restore_train_state(path, initializer.abstract)
    return trace_step(made, state, Batches(features, labels, None), seed=config.seed)
