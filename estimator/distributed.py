"""Finds the cluster that a script runs in, and joins it."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hooks.checks import positive_int

logger = logging.getLogger(__name__)

_JAX_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_LOOKED_FOR = (
    f"the variables {', '.join(_JAX_VARIABLES)}; TF_CONFIG; and what JAX detects: SLURM, Open MPI, "
    "Kubernetes, Cloud TPU"
)
# The order of their tasks is that of the processes; TensorFlow's chief is its process 0.
_TF_TRAINERS = ("chief", "master", "worker")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster that this process belongs to.

    Attributes:
      num_processes: that train together.
      process_id: of this one, from 0.
      coordinator_address: `host:port` of process 0; None with one process, or where JAX found it.
      role: "worker" trains; "evaluator" stays outside, and evaluates what the others save.
      source: where this was found.
    """

    num_processes: int
    process_id: int
    coordinator_address: str | None
    role: str
    source: str


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_timeout_secs: int = 100,
    initialization_timeout_secs: int = 300,
    shutdown_timeout_secs: int = 60,
) -> Cluster:
    """Makes this process one of a job of many. Call it first, before anything uses a device.

    What the arguments leave out is looked for in `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`
    and `JAX_PROCESS_ID`; then in `TF_CONFIG`, whose chief and workers become the processes and
    whose evaluator stays outside; then JAX looks for SLURM, Open MPI, Kubernetes and Cloud TPU.
    Where there is none of them, the script runs as one process, and a log line says so.

    Args:
      coordinator_address: `host:port` of process 0, reachable from all.
      num_processes: in the job.
      process_id: of this one, from 0.
      heartbeat_timeout_secs: a process that was not heard of for so long is dead, and the
        others end.
      initialization_timeout_secs: to wait for the other processes at the start.
      shutdown_timeout_secs: to wait for them at the end.

    Returns:
      The cluster that was joined.

    Raises:
      ValueError: a cluster is named in part, or wrongly; says what is missing.
      RuntimeError: a device was used before.
    """
    for name, value in (
        ("heartbeat_timeout_secs", heartbeat_timeout_secs),
        ("initialization_timeout_secs", initialization_timeout_secs),
        ("shutdown_timeout_secs", shutdown_timeout_secs),
    ):
        positive_int(name, value)
    join = functools.partial(
        jax.distributed.initialize,
        heartbeat_timeout_seconds=heartbeat_timeout_secs,
        initialization_timeout=initialization_timeout_secs,
        shutdown_timeout_seconds=shutdown_timeout_secs,
    )
    cluster = find_cluster(coordinator_address, num_processes, process_id, os.environ)
    if cluster is None:
        return _detected_by_jax(join)
    if cluster.role == "worker" and cluster.num_processes > 1:
        join(
            cluster.coordinator_address,
            cluster.num_processes,
            cluster.process_id,
            cluster_detection_method="deactivate",
        )
    logger.info(
        "%s %d of %d, found in %s.",
        cluster.role.capitalize(),
        cluster.process_id,
        cluster.num_processes,
        cluster.source,
    )
    return cluster


def find_cluster(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    environment: Mapping[str, str],
) -> Cluster | None:
    """Returns what arguments and variables say about the cluster; None if they say nothing.

    Raises:
      ValueError: they say it in part, or wrongly.
    """
    given = (coordinator_address, num_processes, process_id)
    variables = [environment.get(name) for name in _JAX_VARIABLES]
    if any(value is not None for value in given) or any(variables):
        return _from_parts(given, variables)
    if environment.get("TF_CONFIG"):
        return _from_tf_config(environment["TF_CONFIG"])
    return None


def _from_parts(given: tuple[Any, ...], variables: list[str | None]) -> Cluster:
    names = ("coordinator_address", "num_processes", "process_id")
    parts = [
        variable if value is None else value
        for value, variable in zip(given, variables, strict=True)
    ]
    missing = [
        f"{name} ({variable})"
        for name, variable, part in zip(names, _JAX_VARIABLES, parts, strict=True)
        if part in (None, "")
    ]
    if missing:
        raise ValueError(
            f"The cluster is named in part: {', '.join(missing)} is missing. Looked for "
            "the arguments of initialize, and the variables in parentheses. Give all three or none."
        )
    address, count, index = parts
    count, index = _integer("num_processes", count), _integer("process_id", index)
    if count < 1 or not 0 <= index < count:
        raise ValueError(
            f"num_processes={count} and process_id={index} do not go together: process_id must "
            f"be one of 0 to num_processes - 1."
        )
    if not isinstance(address, str) or ":" not in address:
        raise ValueError(
            f"coordinator_address={address!r} must be 'host:port' of process 0, such as "
            "'10.0.0.1:1234'."
        )
    source = "the arguments" if any(value is not None for value in given) else "JAX_* variables"
    return Cluster(
        num_processes=count,
        process_id=index,
        coordinator_address=address,
        role="worker",
        source=source,
    )


def _integer(name: str, value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} must be a number.") from None


def _from_tf_config(text: str) -> Cluster:
    example = (
        '{"cluster": {"worker": ["a:1234", "b:1234"]}, "task": {"type": "worker", "index": 0}}'
    )
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        kind, index = task.get("type", "worker"), int(task.get("index", 0))
        addresses = {name: list(hosts) for name, hosts in cluster.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"TF_CONFIG={text!r} cannot be read ({error}). Expected JSON such as {example}."
        ) from error
    if "ps" in addresses:
        raise ValueError(
            "TF_CONFIG has parameter servers ('ps'), and here every process holds its part of the "
            "model itself. Leave out 'ps', and make those machines workers or nothing."
        )
    trainers = [(name, i) for name in _TF_TRAINERS for i in range(len(addresses.get(name, ())))]
    if kind == "evaluator":
        return Cluster(
            num_processes=1,
            process_id=0,
            coordinator_address=None,
            role="evaluator",
            source="TF_CONFIG",
        )
    if not trainers:  # a TF_CONFIG without a cluster is one machine
        trainers, addresses = [(kind, index)], {kind: [""]}
    if (kind, index) not in trainers:
        raise ValueError(
            f"TF_CONFIG names the task {kind} {index}, which its cluster has not: it has "
            f"{', '.join(f'{name} {i}' for name, i in trainers)}."
        )
    first, _ = trainers[0]
    return Cluster(
        num_processes=len(trainers),
        process_id=trainers.index((kind, index)),
        coordinator_address=addresses[first][0] or None,
        role="worker",
        source="TF_CONFIG",
    )


def _detected_by_jax(join: Callable[[], None]) -> Cluster:
    try:
        join()
    except ValueError as error:
        if "coordinator_address" not in str(error):
            raise ValueError(
                f"JAX found a cluster in part: {error} Looked for {_LOOKED_FOR}. Pass "
                "initialize(coordinator_address=, num_processes=, process_id=)."
            ) from error
        logger.info(
            "This script runs as one process: no cluster was found. Looked for %s.", _LOOKED_FOR
        )
        return Cluster(
            num_processes=1,
            process_id=0,
            coordinator_address=None,
            role="worker",
            source="nothing",
        )
    cluster = Cluster(
        num_processes=jax.process_count(),
        process_id=jax.process_index(),
        coordinator_address=None,
        role="worker",
        source="the environment, by JAX",
    )
    logger.info("Process %d of %d, found by JAX.", cluster.process_id, cluster.num_processes)
    return cluster
