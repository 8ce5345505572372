"""Which devices a model runs on, and how they share the work: frozen settings."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from hooks.checks import positive_int


class Replication(enum.StrEnum):
    """What model_fn sees of a batch."""

    GLOBAL = "global"
    PER_REPLICA = "per_replica"


ParameterRules = Sequence[tuple[str, PartitionSpec]]
"""(regular expression for the whole name of a variable, how its dimensions are split)."""

ParameterFunction = Callable[[str, jax.ShapeDtypeStruct], PartitionSpec | None]
"""(name, shape and dtype) of a variable -> how its dimensions are split."""

AUTOMATIC = "fsdp"
"""The value of `shard_parameters` that leaves the choice of dimensions to the estimator."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Which devices a model runs on, and how they share the work.

    The devices form a mesh with three axes. A replica is a group of `num_cores_per_replica`
    devices (the last axis) that works on its share of the batch; batches are split over the first
    two axes, and parameters may be split over the last two.

    Attributes:
      devices: the `jax.Device`s to use; all of the job's if None.
      replication: "global": model_fn sees the global batch, sharded over the devices, and
        numbers do not depend on how many there are. "per_replica": it sees the batch of its
        replica, and talks to the others by `context.axis_name`.
      num_cores_per_replica: devices that share a replica: the size of the model axis.
      fsdp_size: replicas that share one copy of the parameters that are split over the fsdp axis.
        If None: all of them with `shard_parameters="fsdp"`, else one.
      axis_names: of the mesh: the axis of data parallelism, that of data parallelism with split
        parameters, and that within a replica.
      shard_parameters: how variables are split, and with them what the optimizer keeps of each:
        - None: as their flax partitioning metadata say, or not at all.
        - rules `[(".*/kernel", P("fsdp", "model")), ...]`: the first whose pattern is the whole
          name, such as `params/Dense_0/kernel`, decides. A variable without one is treated as
          with None.
        - a function (name, `jax.ShapeDtypeStruct`) -> PartitionSpec, or None for "as with None".
        - "fsdp": variables without metadata are split over the fsdp axis, along the largest
          dimension that divides (the first of several).
      fsdp_min_elements: with `shard_parameters="fsdp"`, smaller variables are whole everywhere: to
        gather them would cost more than they take.
      logical_axis_rules: (logical name, mesh axis, axes or None) for models with
        `flax.linen.with_logical_partitioning` or `with_logical_constraint`.
    """

    devices: Sequence[Any] | None = None
    replication: str = Replication.GLOBAL
    num_cores_per_replica: int = 1
    fsdp_size: int | None = None
    axis_names: tuple[str, str, str] = ("data", "fsdp", "model")
    shard_parameters: str | ParameterRules | ParameterFunction | None = None
    fsdp_min_elements: int = 2**16
    logical_axis_rules: Sequence[tuple[str, str | tuple[str, ...] | None]] = ()

    def __post_init__(self) -> None:
        if self.replication not in list(Replication):
            raise ValueError(
                f"replication={self.replication!r} is not known. Use one of "
                f"{', '.join(Replication)}."
            )
        if self.devices is not None:
            _check_devices(self.devices)
        positive_int("num_cores_per_replica", self.num_cores_per_replica)
        positive_int("fsdp_min_elements", self.fsdp_min_elements)
        if self.fsdp_size is not None:
            positive_int("fsdp_size", self.fsdp_size)
        _check_axis_names(self.axis_names)
        _check_shard_parameters(self.shard_parameters, self.axis_names)
        _check_logical_axis_rules(self.logical_axis_rules, self.axis_names)


def _check_devices(devices: Any) -> None:
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise TypeError(
            f"devices must be a list of jax.Device, such as jax.devices()[:4], got {devices!r}."
        )
    if len(devices) == 0:
        raise ValueError("devices=[] leaves nothing to run on. Pass at least one, or None.")
    for device in devices:
        if not isinstance(device, jax.Device):
            raise TypeError(
                f"devices must be a list of jax.Device, such as jax.devices()[:4]; it holds "
                f"{device!r}."
            )
    if len(set(devices)) < len(devices):
        raise ValueError(f"devices={list(devices)} names a device twice. Name each once.")


def _check_axis_names(names: Any) -> None:
    if (
        isinstance(names, str)
        or not isinstance(names, Sequence)
        or len(names) != 3
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) != 3
    ):
        raise ValueError(
            f"axis_names={names!r} must be three different names, such as "
            "('data', 'fsdp', 'model')."
        )


def _check_shard_parameters(given: Any, axis_names: Sequence[str]) -> None:
    if given is None or callable(given) or given == AUTOMATIC:
        return
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(
            f"shard_parameters={given!r} is not known. Use {AUTOMATIC!r}, a list of rules such as "
            "[('.*/kernel', PartitionSpec('fsdp', 'model'))], or a function of name and shape."
        )
    for rule in given:
        pair = isinstance(rule, tuple) and len(rule) == 2
        if not pair or not isinstance(rule[0], str) or not isinstance(rule[1], PartitionSpec):
            raise TypeError(
                f"shard_parameters holds {rule!r}. A rule is a pair of a regular expression and "
                "a jax.sharding.PartitionSpec, such as ('.*/kernel', PartitionSpec('fsdp'))."
            )
        check_axes(f"The rule {rule[0]!r} of shard_parameters", rule[1], axis_names)


def _check_logical_axis_rules(rules: Any, axis_names: Sequence[str]) -> None:
    for rule in rules:
        if not (isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[0], str)):
            raise TypeError(
                f"logical_axis_rules holds {rule!r}. A rule is a pair of a logical name and a "
                "mesh axis, such as ('embed', 'fsdp')."
            )
        check_axes(f"The rule for {rule[0]!r} of logical_axis_rules", [rule[1]], axis_names)


def axes_of(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes that one entry of a PartitionSpec names."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def check_axes(what: str, spec: Any, axis_names: Sequence[str]) -> None:
    """Refuses a PartitionSpec that names an axis twice, or one that the mesh does not have.

    Raises:
      ValueError: it does; begins with `what`.
    """
    named = [axis for entry in spec for axis in axes_of(entry)]
    for axis in named:
        if axis not in axis_names:
            raise ValueError(
                f"{what} names the mesh axis {axis!r}. The mesh has the axes "
                f"{', '.join(axis_names)}: use one of them, or change DeviceConfig.axis_names."
            )
        if named.count(axis) > 1:
            raise ValueError(
                f"{what} names the mesh axis {axis!r} twice. An axis can split one dimension."
            )
