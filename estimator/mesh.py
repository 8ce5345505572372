"""Devices arranged as a mesh, and how batches and variables lie on it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from estimator.device_config import AUTOMATIC, DeviceConfig, Replication
from hooks.checks import positive_int


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """Where the arrays of a run live: variables on every device unless they are split, batches
    split over the replicas.

    Attributes:
      mesh: three axes over all devices of the run, named by `config.axis_names`.
      config: what it was made from.
    """

    mesh: Mesh
    config: DeviceConfig

    @classmethod
    def make(cls, config: DeviceConfig) -> Placement:
        """Builds the mesh that `config` asks for (all devices of the job by default).

        Raises:
          ValueError: the devices do not divide into the sizes that it names.
        """
        devices = jax.devices() if config.devices is None else config.devices
        mesh = Mesh(
            _arranged(_mesh_shape(config, len(devices)), devices),
            config.axis_names,
            axis_types=(AxisType.Auto,) * 3,
        )
        return cls(mesh, config)

    @property
    def data_axis(self) -> str:
        """The axis over which batches are split and variables are whole."""
        return self.config.axis_names[0]

    @property
    def fsdp_axis(self) -> str:
        """The axis over which batches are split, and variables may be."""
        return self.config.axis_names[1]

    @property
    def model_axis(self) -> str:
        """The axis within a replica."""
        return self.config.axis_names[2]

    @cached_property
    def replica_axes(self) -> tuple[str, ...]:
        """The axes over which batches are split; the second only where it is longer than one."""
        if self.mesh.shape[self.fsdp_axis] == 1:
            return (self.data_axis,)
        return (self.data_axis, self.fsdp_axis)

    @property
    def per_replica(self) -> bool:
        """Whether model_fn sees the batch of its replica, and not the global one."""
        return self.config.replication == Replication.PER_REPLICA

    @cached_property
    def num_replicas(self) -> int:
        """Replicas over the whole job: each sees its share of the batch."""
        return self.mesh.size // self.mesh.shape[self.model_axis]

    @cached_property
    def local_replicas(self) -> tuple[int, ...]:
        """Which of the replicas, from 0 in the order of the global batch, have a device in this
        process."""
        here = jax.process_index()
        groups = self.mesh.devices.reshape(self.num_replicas, -1)
        return tuple(
            index
            for index, group in enumerate(groups)
            if any(device.process_index == here for device in group)
        )

    def local_rows(self, batch_size: int) -> np.ndarray:
        """Returns which rows of a global batch of `batch_size` examples the devices of this
        process hold: ascending int64 indices. All of them where the batch is not split."""
        if batch_size % self.num_replicas:
            return np.arange(batch_size)
        rows = np.arange(batch_size).reshape(self.num_replicas, -1)
        return rows[list(self.local_replicas)].reshape(-1)

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are CPUs."""
        return self.mesh.devices.flat[0].platform == "cpu"

    @property
    def one_program_at_a_time(self) -> bool:
        """Whether a program may start only when the one before it has ended.

        XLA:CPU runs the devices of a process on one pool of threads. With several programs
        enqueued, their threads can fill it while a collective still waits for devices that
        then find no thread, and the process aborts.
        """
        return self.on_cpu and self.mesh.size > 1

    @cached_property
    def replicated(self) -> NamedSharding:
        """A whole copy on every device."""
        return self.sharding(PartitionSpec())

    @cached_property
    def stacked_batches(self) -> NamedSharding:
        """`[steps, batch, ...]` with the batch split over the replicas."""
        return self.sharding(PartitionSpec(None, self.replica_axes))

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """Returns `spec` on the devices of this mesh."""
        return NamedSharding(self.mesh, spec)

    def tracing(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which model_fn is traced: constraints in it, such as
        `jax.lax.with_sharding_constraint(x, PartitionSpec("data"))`, name axes of this mesh."""
        return jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)

    def splits(self, batch_size: int) -> bool:
        """Says whether a batch of `batch_size` examples is split over the replicas."""
        return batch_size % self.num_replicas == 0

    def for_batch_size(
        self, batch_size: int, partition_dims: Sequence[int] | None = None
    ) -> NamedSharding:
        """Returns the sharding of stacked batches of `batch_size` examples.

        They are split over the replicas where that divides, else whole in each, which gives the
        same numbers.

        Args:
          batch_size: examples of a batch.
          partition_dims: for an array `[batch, ...]`, into how many parts each of its dimensions
            is cut within a replica: 1 for the batch itself, and `num_cores_per_replica` in all.
            None leaves it whole.
        """
        if partition_dims is None:
            return self.stacked_batches if self.splits(batch_size) else self.replicated
        batch = self.replica_axes if self.splits(batch_size) else None
        names = [f"{self.model_axis}_{index}" for index in range(len(partition_dims))]
        cut = [name if n > 1 else None for name, n in zip(names, partition_dims, strict=True)]
        # The same devices in the same order: arrays on both meshes go into one program.
        data, fsdp, _ = self.mesh.devices.shape
        mesh = Mesh(
            self.mesh.devices.reshape(data, fsdp, *partition_dims),
            (self.data_axis, self.fsdp_axis, *names),
            axis_types=(AxisType.Auto,) * (2 + len(names)),
        )
        return NamedSharding(mesh, PartitionSpec(None, batch, *cut[1:]))

    @cached_property
    def num_processes(self) -> int:
        """Processes whose devices are on the mesh."""
        return len({device.process_index for device in self.mesh.devices.flat})

    def replicate(self, tree: Any) -> Any:
        """Puts a copy of numpy arrays, the same on every process, on every device."""
        if self.num_processes == 1:
            return jax.device_put(tree, self.replicated)
        return jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(self.replicated, np.asarray(leaf)),
            tree,
        )

    def read_local_rows(self, array: jax.Array) -> np.ndarray:
        """Returns this process's part `[steps, rows, ...]` of stacked outputs, in numpy."""
        if array.is_fully_addressable or array.ndim < 2:
            return np.asarray(array)
        parts = {shard.index[1].start or 0: shard.data for shard in array.addressable_shards}
        return np.concatenate([np.asarray(parts[start]) for start in sorted(parts)], axis=1)

    def check_batch_size(self, name: str, batch_size: int, parts: int = 1) -> int:
        """Returns `batch_size` if it divides over the replicas, and in each into `parts`.

        Raises:
          ValueError: it does not; names the nearest sizes that do.
        """
        batch_size = positive_int(name, batch_size)
        whole = self.num_replicas * parts
        if batch_size % whole:
            below = batch_size // whole * whole
            above = below + whole
            use = f"{below} or {above}" if below else f"{above}"
            axes = " and ".join(repr(axis) for axis in self.replica_axes)
            axes = f"mesh {'axis' if len(self.replica_axes) == 1 else 'axes'} {axes}"
            into = f" with {parts} microbatches each" if parts > 1 else ""
            raise ValueError(
                f"{name}={batch_size} does not divide over the {self.num_replicas} replicas of "
                f"{axes}{into}. Use {use}."
            )
        return batch_size


def _mesh_shape(config: DeviceConfig, num_devices: int) -> tuple[int, int, int]:
    model = config.num_cores_per_replica
    if num_devices % model:
        raise ValueError(
            f"num_cores_per_replica={model} does not divide the {num_devices} devices. Use one of "
            f"{_divisors(num_devices)}."
        )
    replicas = num_devices // model
    fsdp = config.fsdp_size
    if fsdp is None:
        fsdp = replicas if config.shard_parameters == AUTOMATIC else 1
    if replicas % fsdp:
        raise ValueError(
            f"fsdp_size={fsdp} does not divide the {replicas} replicas ({num_devices} devices, "
            f"{model} in each). Use one of {_divisors(replicas)}."
        )
    return replicas // fsdp, fsdp, model


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def _arranged(shape: tuple[int, int, int], devices: Sequence[Any]) -> np.ndarray:
    """Returns the devices as an array of `shape` in which neighbours are near each other.

    Raises:
      ValueError: they are in several slices, over which only the data axis can reach.
    """
    slices = {getattr(device, "slice_index", 0) for device in devices}
    if len(slices) == 1:
        mesh = jax.make_mesh(shape, ("x", "y", "z"), (AxisType.Auto,) * 3, devices=devices)
        return mesh.devices
    data, fsdp, model = shape
    if data % len(slices):
        raise ValueError(
            f"The {math.prod(shape)} devices are in {len(slices)} slices, and groups of "
            f"fsdp_size * num_cores_per_replica = {fsdp * model} devices do not fit into each. "
            "Make one of them smaller."
        )
    within = (data // len(slices), fsdp, model)
    return mesh_utils.create_hybrid_device_mesh(within, (len(slices), 1, 1), devices)
