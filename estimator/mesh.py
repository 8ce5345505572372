"""Devices arranged as a mesh, and how batches and variables lie on it."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from estimator.config import DeviceConfig
from hooks.checks import positive_int

DATA_AXIS = "data"


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """Where the arrays of a run live: variables on every device, batches split over them.

    Attributes:
      mesh: one axis, `data`, over all devices of the run.
    """

    mesh: Mesh

    @classmethod
    def make(cls, config: DeviceConfig) -> Placement:
        """Builds the mesh that `config` asks for (all devices of the job by default)."""
        devices = jax.devices() if config.devices is None else config.devices
        return cls(Mesh(np.asarray(devices), (DATA_AXIS,)))

    @property
    def num_replicas(self) -> int:
        """Replicas over the whole job: each sees its share of the batch."""
        return self.mesh.shape[DATA_AXIS]

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
        return self.on_cpu and self.num_replicas > 1

    @cached_property
    def replicated(self) -> NamedSharding:
        """A whole copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def stacked_batches(self) -> NamedSharding:
        """`[steps, batch, ...]` with the batch split over the replicas."""
        return NamedSharding(self.mesh, PartitionSpec(None, DATA_AXIS))

    def for_batch_size(self, batch_size: int) -> NamedSharding:
        """Returns the sharding of stacked batches of `batch_size` examples: split over the
        replicas where that divides, else whole on every device, which gives the same numbers."""
        if batch_size % self.num_replicas == 0:
            return self.stacked_batches
        return self.replicated

    def check_batch_size(self, name: str, batch_size: int) -> int:
        """Returns `batch_size` if it divides over the replicas.

        Raises:
          ValueError: it does not; names the nearest sizes that do.
        """
        batch_size = positive_int(name, batch_size)
        if batch_size % self.num_replicas:
            below = batch_size // self.num_replicas * self.num_replicas
            above = below + self.num_replicas
            use = f"{below} or {above}" if below else f"{above}"
            raise ValueError(
                f"{name}={batch_size} does not divide over the {self.num_replicas} replicas of "
                f"mesh axis {DATA_AXIS!r}. Use {use}."
            )
        return batch_size
