"""Compiles the loops of small models for TPUs that are described but not attached.

The tests beside it run it as a process of its own, whose environment suits libtpu. It prints as
JSON what the compiler made of each loop of a case.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.experimental import topologies

import estimator as est
from estimator.batches import Batches
from estimator.device_config import DeviceConfig
from estimator.input_config import InputPipelineConfig
from estimator.input_partition import InputPartition
from estimator.mesh import Placement
from estimator.model import Model
from estimator.programs import BatchSpec, Programs
from estimator.runtime import RunMetadata
from estimator.steps import EvalCarry, Frozen
from examples import digits, transformer

IMAGE = (16, 64, 64, 8)


def convnet(features, labels, mode):
    """Convolutions that see across the borders of the parts into which an image is cut."""
    x = features["image"]
    for _ in range(3):
        x = nn.relu(nn.Conv(32, (3, 3))(x))
    losses = optax.softmax_cross_entropy_with_integer_labels(nn.Dense(4)(x.mean((1, 2))), labels)
    return est.EstimatorSpec(mode, loss=losses, optimizer=optax.sgd(1e-2))


class Case(NamedTuple):
    """A model, the kind of batches that it is compiled for, and where.

    Attributes:
      model_fn: the model.
      params: of model_fn.
      spec: (features, labels).
      modes: whose loops are compiled.
      topology: TPUs, as libtpu names them.
      devices: what `DeviceConfig` is told besides.
      partition_dims: of `InputPipelineConfig`.
      compute_dtype: of `RunConfig`.
    """

    model_fn: Callable[..., Any]
    params: dict[str, Any]
    spec: BatchSpec
    modes: Sequence[str] = ("train", "evaluate", "predict")
    topology: str = "v5e:2x2"
    devices: Callable[[Sequence[Any]], DeviceConfig] = lambda devices: DeviceConfig(devices=devices)
    partition_dims: Mapping[str, Sequence[int]] = {}
    compute_dtype: str | None = None


def _spec(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


SMALL = transformer.Size(blocks=2, width=256, heads=4, length=128)
LARGE = transformer.Size(blocks=2, width=1024, heads=16, length=256)


def _transformer(size: transformer.Size, batch_size: int, **settings: Any) -> Case:
    tokens = _spec(np.int32, batch_size, size.length)
    return Case(
        transformer.model_fn,
        {"size": size, "steps": 1500},
        ({"tokens": tokens}, tokens),
        compute_dtype="bfloat16",
        **settings,
    )


def _large(layout: str) -> Case:
    return _transformer(
        LARGE,
        32,
        modes=["train"],
        topology="v5e:4x4",
        devices=lambda devices: transformer.layout(layout, devices),
    )


def _spatial(*dims: int) -> Case:
    return Case(
        convnet,
        {},
        ({"image": _spec(np.float32, *IMAGE)}, _spec(np.int32, IMAGE[0])),
        modes=["train"],
        devices=lambda devices: DeviceConfig(devices=devices, num_cores_per_replica=4),
        partition_dims={"features/image": dims},
    )


CASES = {
    "digits": Case(
        digits.model_fn,
        {"hidden": (256, 256), "steps": 1500},
        ({"image": _spec(np.float32, 64, 8, 8)}, _spec(np.int32, 64)),
    ),
    "transformer": _transformer(SMALL, 8),
    "large fsdp": _large("fsdp"),
    "large tensor": _large("tensor"),
    "rows": _spatial(1, 4, 1, 1),
    "squares": _spatial(1, 2, 2, 1),
}


class LoopsOnTpu:
    """The loops of one case for devices that are not there, with the product's own parts."""

    def __init__(self, case: Case):
        devices = topologies.get_topology_desc(case.topology, platform="tpu").devices
        config = est.RunConfig(
            devices=case.devices(devices),
            iterations_per_loop=50,
            input=InputPipelineConfig(partition_dims=case.partition_dims),
            compute_dtype=case.compute_dtype,
        )
        self._spec = case.spec
        self._steps = config.steps_per_dispatch
        self._placement = Placement.make(config.devices)
        self._partition = InputPartition(self._placement, config.input)
        model = Model(
            case.model_fn,
            params=case.params,
            config=config,
            num_replicas=self._placement.num_replicas,
        )
        self._programs = Programs(model, self._placement, config)

    def train(self) -> tuple[Any, RunMetadata]:
        """Returns what training carries from step to step, and what the compiler tells about it."""
        initializer = self._programs.initializer(est.ModeKeys.TRAIN, self._spec)
        batches = self._batches(est.ModeKeys.TRAIN, *self._spec, mask=False)
        state = initializer.abstract
        return state, self._programs.train().metadata(state, (), batches)

    def evaluate(self) -> tuple[Any, RunMetadata]:
        """Likewise of evaluation, where every batch comes with a mask."""
        initializer = self._programs.initializer(est.ModeKeys.EVAL, self._spec)
        batches = self._batches(est.ModeKeys.EVAL, *self._spec, mask=True)
        carry = EvalCarry(batch=np.int32(0), merged=initializer.outline.empty_metrics())
        carry = self._replicated(carry)
        frozen = self._frozen(initializer.abstract)
        return carry, self._programs.evaluate().metadata(carry, frozen, batches)

    def predict(self) -> tuple[Any, RunMetadata]:
        """Likewise of prediction, which sees no labels."""
        features = self._spec[0]
        initializer = self._programs.initializer(est.ModeKeys.PREDICT, (features, None))
        batches = self._batches(est.ModeKeys.PREDICT, features, None, mask=False)
        carry = self._replicated(np.int32(0))
        frozen = self._frozen(initializer.abstract)
        return carry, self._programs.predict(None, gathers=False).metadata(carry, frozen, batches)

    def _batches(self, mode: est.ModeKeys, features: Any, labels: Any, *, mask: bool) -> Batches:
        spec = (features, labels)
        outline = self._programs.initializer(mode, spec).outline
        step_bytes = sum(math.prod(leaf.shape) * 4 for leaf in jax.tree.leaves(spec))
        capacity = self._programs.capacity(mode, spec, outline, self._steps, step_bytes=step_bytes)
        batch_size = jax.tree.leaves(features)[0].shape[0]
        one = Batches(features, labels, _spec(np.bool_, batch_size) if mask else None)
        own = jax.tree.map(  # rows of a process
            lambda leaf: _spec(
                leaf.dtype,
                capacity,
                leaf.shape[0] // self._placement.num_processes,
                *leaf.shape[1:],
            ),
            one,
        )
        shardings = self._partition.shardings(own)
        if not isinstance(shardings, Batches):
            shardings = jax.tree.map(lambda _: shardings, one)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(
                (capacity, *leaf.shape), leaf.dtype, sharding=sharding
            ),
            one,
            shardings,
        )

    def _frozen(self, variables: Any) -> Frozen:
        return Frozen(variables, self._replicated(np.int32(0)))

    def _replicated(self, tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=self._placement.replicated
            ),
            tree,
        )


def found(carry: Any, metadata: RunMetadata) -> dict[str, Any]:
    """Returns what a test wants to know about a loop."""
    leaves = jax.tree.leaves(carry)
    return {
        "carried_arrays": len(leaves),
        "carried_elements": [math.prod(leaf.shape) for leaf in leaves],
        "carried_bytes": sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in leaves
        ),
        "aliased_bytes": metadata.aliased_bytes,
        "peak_bytes": metadata.peak_memory_bytes,
        "hlo_text": metadata.hlo_text,
    }


def main(name: str) -> None:
    case = CASES[name]
    loops = LoopsOnTpu(case)
    json.dump({mode: found(*getattr(loops, mode)()) for mode in case.modes}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
