"""From an input_fn to a source of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from estimator.config import RunConfig
from estimator.mesh import Placement
from estimator.model import accepted_names
from estimator.spec import ModeKeys
from input_pipeline import InputContext, Source, make_source

INPUT_FN_ARGUMENTS = ("params", "mode", "config", "context")


def open_source(
    input_fn: Callable[..., Any],
    *,
    mode: ModeKeys,
    batch_size: int,
    params: Mapping[str, Any],
    config: RunConfig,
    placement: Placement,
) -> Source:
    """Calls input_fn with whichever of `INPUT_FN_ARGUMENTS` it names, and reads what it returns
    in batches of `batch_size` examples.

    Raises:
      TypeError: input_fn has a required argument of another name, or returns something that
        cannot be read.
      ValueError: it returns data that cannot be batched.
      Whatever input_fn raises, as itself.
    """
    names = accepted_names("input_fn", input_fn, INPUT_FN_ARGUMENTS)
    context = InputContext(
        num_hosts=jax.process_count(),
        current_host=jax.process_index(),
        num_input_pipelines=jax.process_count(),
        input_pipeline_id=jax.process_index(),
        num_replicas=placement.num_replicas,
        batch_size=batch_size,
    )
    values = {
        "params": {**params, "batch_size": batch_size, "context": context},
        "mode": mode,
        "config": config,
        "context": context,
    }
    data = input_fn(**{name: values[name] for name in names})
    return make_source(data, batch_size=batch_size, host_columns=mode is ModeKeys.PREDICT)
