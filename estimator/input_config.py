"""How input_fn is deployed over hosts and replicas, and how its tensors lie."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any


class Deployment(enum.StrEnum):
    """Which calls of input_fn feed a job."""

    PER_HOST = "per_host"
    PER_REPLICA = "per_replica"
    BROADCAST = "broadcast"
    SLICED = "sliced"


class Resume(enum.StrEnum):
    """Where the input of a run begins that goes on from a checkpoint."""

    CONTINUE = "continue"
    RESTART = "restart"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputPipelineConfig:
    """How input_fn is deployed, and how its tensors lie.

    Tensors are named by their path: `features/image` is `features["image"]`, `features` and
    `labels` are a single array each.

    Attributes:
      deployment: "per_host": one call in each process, for the batches of its replicas;
        "per_replica": one call for each replica, each with its share of the batch; "broadcast"
        and "sliced": one call in the first process, whose batches of full size go to all
        processes, or are cut among them. Each call finds in `params["batch_size"]` how many
        examples its batches should have, and in `params["context"]` which call it is.
      partition_dims: name of a tensor -> into how many parts each of its dimensions is cut over
        the cores of one replica: 1 for the batch, and `num_cores_per_replica` in all. Tensors
        that are not named are whole on each core.
      batch_axis: name of a tensor -> which of its dimensions is the batch, from 0, both in the
        batches that input_fn makes and in what model_fn sees; the first if it is not named. A
        `Dataset` of examples is batched by this package: only model_fn sees it there.
    """

    deployment: str = Deployment.PER_HOST
    partition_dims: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    batch_axis: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.deployment not in list(Deployment):
            raise ValueError(
                f"deployment={self.deployment!r} is not known. Use one of {', '.join(Deployment)}."
            )
        for name in ("partition_dims", "batch_axis"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(
                    f"{name} must be a dict from the name of a tensor, such as 'features/image' or "
                    f"'labels', got {getattr(self, name)!r}."
                )
        for name, axis in self.batch_axis.items():
            if not _is_int(axis, at_least=0):
                raise ValueError(
                    f"batch_axis[{name!r}]={axis!r} must be the number of a dimension, from 0."
                )
        for name, dims in self.partition_dims.items():
            whole = isinstance(dims, Sequence) and not isinstance(dims, str)
            if not whole or not dims or not all(_is_int(n, at_least=1) for n in dims):
                raise ValueError(
                    f"partition_dims[{name!r}]={dims!r} must hold a positive int for each "
                    "dimension, such as (1, 4, 1, 1)."
                )
            axis = self.batch_axis.get(name, 0)
            if axis < len(dims) and dims[axis] != 1:
                raise ValueError(
                    f"partition_dims[{name!r}]={tuple(dims)} cuts dimension {axis}, which is the "
                    "batch, within a replica. Put 1 there: replicas share the batch already."
                )


def _is_int(value: Any, *, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
