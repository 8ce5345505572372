"""Where the tensors of a batch lie on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax

from estimator.batches import Batches, PackedBatches
from estimator.input_config import InputPipelineConfig
from estimator.mesh import Placement
from input_pipeline import tensor_name

_Stack = TypeVar("_Stack", bound=Batches | PackedBatches)


@dataclasses.dataclass(frozen=True)
class InputPartition:
    """Splits batches over the replicas and, where that is asked for, tensors within a replica.

    Attributes:
      placement: the devices.
      config: which tensors are cut into what, and where their batch dimension is.
    """

    placement: Placement
    config: InputPipelineConfig

    def check(self, spec: tuple[Any, Any]) -> None:
        """Refuses settings that do not fit the input.

        Args:
          spec: (features, labels) with a `jax.ShapeDtypeStruct` `[batch, ...]` in each array's
            place, labels None if they are not used.

        Raises:
          ValueError: a tensor that is named does not exist, or has other dimensions.
        """
        if not (self.config.partition_dims or self.config.batch_axis):
            return
        leaves = {
            tensor_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(spec)
        }
        labels = spec[1]
        for setting in ("batch_axis", "partition_dims"):
            for name in getattr(self.config, setting):
                unused = labels is None and name.split("/")[0] == "labels"
                if name not in leaves and not unused:
                    raise ValueError(
                        f"{setting} names {name!r}, which the input does not have. It has "
                        f"{', '.join(leaves)}."
                    )
        for name, axis in self.config.batch_axis.items():
            if name in leaves and axis >= leaves[name].ndim:
                raise ValueError(
                    f"batch_axis[{name!r}]={axis}: the tensor has the {leaves[name].ndim} "
                    "dimensions 0 and up, the batch included. Name one of them."
                )
        for name in self.config.partition_dims:
            if name in leaves:
                self._check_dims(name, leaves[name].shape)

    def packed(self, batches: Batches) -> Batches | PackedBatches:
        """Returns many small arrays as few, unless some of them are cut in their own ways."""
        return batches if self.config.partition_dims else PackedBatches.of(batches)

    def put(self, batches: _Stack) -> _Stack:
        """Puts stacked batches, numpy arrays `[steps, batch, ...]`, on the devices.

        Where those belong to several processes, each passes its own part of each batch, and the
        arrays returned are those of all of them. No process waits for another one here.
        """
        shardings = self.shardings(batches)
        if self.placement.num_processes == 1:
            return jax.device_put(batches, shardings)
        if not isinstance(shardings, Batches):
            shardings = jax.tree.map(lambda _: shardings, batches)
        return jax.tree.map(
            lambda leaf, sharding: jax.make_array_from_process_local_data(sharding, leaf),
            batches,
            shardings,
        )

    def shardings(self, batches: Batches | PackedBatches) -> Any:
        """Returns the sharding of all leaves of stacked batches of this process, or a tree with
        that of each."""
        batch_size = batches.shape[1] * self.placement.num_processes
        whole = self.placement.for_batch_size(batch_size)
        if not self.config.partition_dims or isinstance(batches, PackedBatches):
            return whole

        def sharding(path: Any, leaf: Any) -> Any:
            name = tensor_name(path)
            if name not in self.config.partition_dims:
                return whole
            dims = self._check_dims(name, leaf.shape[1:])
            return self.placement.for_batch_size(batch_size, dims)

        pair = (batches.features, batches.labels)
        features, labels = jax.tree_util.tree_map_with_path(sharding, pair)
        return Batches(features, labels, None if batches.mask is None else whole)

    def _check_dims(self, name: str, shape: Sequence[int]) -> Sequence[int] | None:
        """Returns into how many parts each dimension of `shape`, the batch in front, is cut; None
        if none is."""
        given = self.config.partition_dims[name]
        axis = self.config.batch_axis.get(name, 0)
        what = f"partition_dims[{name!r}]={tuple(given)}"
        if len(given) != len(shape):
            raise ValueError(
                f"{what} has {len(given)} dimensions, but the tensor has {len(shape)}, the batch "
                "included. Give a number for each."
            )
        cores = self.placement.config.num_cores_per_replica
        parts = 1
        for number in given:
            parts *= number
        if parts not in (1, cores):
            raise ValueError(
                f"{what} cuts the tensor into {parts} parts, but a replica has "
                f"num_cores_per_replica={cores}. Make their product {cores}, or leave the tensor "
                "out to have it whole on each core."
            )
        dims = [1, *given[:axis], *given[axis + 1 :]]
        for index, (size, number) in enumerate(zip(shape, dims, strict=True)):
            if index and size % number:
                where = index if index > axis else index - 1  # as the user counts
                raise ValueError(
                    f"{what}: dimension {where} of the tensor has the size {size}, which does not "
                    f"divide into {number} parts. Pad it to a multiple of {number}."
                )
        return None if parts == 1 else dims
