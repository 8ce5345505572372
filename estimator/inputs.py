"""From an input_fn to a source of batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator.config import RunConfig
from estimator.hosts import Hosts
from estimator.input_config import Deployment
from estimator.mesh import Placement
from estimator.model import accepted_names
from estimator.spec import ModeKeys
from input_pipeline import CombinedSource, ElsewhereSource, InputContext, Source, make_source

INPUT_FN_ARGUMENTS = ("params", "mode", "config", "context")


def input_calls(
    deployment: str,
    batch_size: int,
    *,
    num_hosts: int,
    current_host: int,
    num_replicas: int,
    local_replicas: Sequence[int],
) -> tuple[InputContext, ...]:
    """Returns the calls of input_fn that one process makes, in the order of their examples.

    Args:
      deployment: one of `Deployment`.
      batch_size: examples of a batch over the whole job, a multiple of `num_replicas`.
      num_hosts: processes of the job.
      current_host: which of them this is.
      num_replicas: of the job.
      local_replicas: those that get their examples from this process, ascending.
    """
    per_replica = batch_size // num_replicas
    if deployment == Deployment.PER_HOST:
        calls = [(num_hosts, current_host, per_replica * len(local_replicas))]
    elif deployment == Deployment.PER_REPLICA:
        calls = [(num_replicas, replica, per_replica) for replica in local_replicas]
    else:
        calls = [(1, 0, batch_size)] if current_host == 0 else []
    return tuple(
        InputContext(
            num_input_pipelines=count,
            input_pipeline_id=index,
            num_hosts=num_hosts,
            current_host=current_host,
            num_replicas=num_replicas,
            batch_size=size,
        )
        for count, index, size in calls
    )


def open_source(
    input_fn: Callable[..., Any],
    *,
    mode: ModeKeys,
    batch_size: int,
    params: Mapping[str, Any],
    config: RunConfig,
    placement: Placement,
    hosts: Hosts,
) -> Source:
    """Calls input_fn, as often as `config.input` says, with whichever of `INPUT_FN_ARGUMENTS` it
    names, and reads what it returns in batches that are `batch_size` examples together.

    Raises:
      TypeError: input_fn has a required argument of another name, or returns something that
        cannot be read.
      ValueError: it returns data that cannot be batched.
      Whatever input_fn raises, as itself.
    """
    names = accepted_names("input_fn", input_fn, INPUT_FN_ARGUMENTS)
    calls = input_calls(
        config.input.deployment,
        batch_size,
        num_hosts=hosts.count,
        current_host=hosts.index,
        num_replicas=placement.num_replicas,
        local_replicas=placement.local_replicas,
    )

    def opened(context: InputContext) -> Source:
        values = {
            "params": {**params, "batch_size": context.batch_size, "context": context},
            "mode": mode,
            "config": config,
            "context": context,
        }
        return make_source(
            input_fn(**{name: values[name] for name in names}),
            batch_size=context.batch_size,
            host_columns=mode is ModeKeys.PREDICT,
            batch_axis=config.input.batch_axis,
        )

    if not calls:
        return ElsewhereSource(batch_size)
    with contextlib.ExitStack() as closing:
        sources = []
        for context in calls:
            sources.append(opened(context))
            closing.callback(sources[-1].close)
        source = sources[0] if len(sources) == 1 else CombinedSource(sources)
        if source.table is not None and config.input.partition_dims:
            raise ValueError(
                f"partition_dims={dict(config.input.partition_dims)} cuts batches that are sent to "
                "the devices, but from_arrays(device_resident=True) keeps all data whole on each. "
                "Leave one of them out."
            )
        closing.pop_all()  # all is well: from here on it belongs to the caller
    return source
