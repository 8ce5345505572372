"""Compiles the loops of a small model for four TPUs that are described but not attached.

`test_tpu_programs.py` runs it as a process of its own, whose environment suits libtpu. It prints
as JSON what the compiler made of each loop.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies

import estimator as est
from estimator.batches import Batches
from estimator.device_config import DeviceConfig
from estimator.mesh import Placement
from estimator.model import Model
from estimator.programs import BatchSpec, Programs
from estimator.runtime import RunMetadata
from estimator.steps import EvalCarry, Frozen
from examples import digits

TOPOLOGY = "v5e:2x2"

VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS = 512, 128, 256, 4, 2


def transformer(features, labels, mode):
    """A causal language model in bfloat16, its parameters in float32."""
    tokens = features["tokens"]
    x = nn.Embed(VOCABULARY, WIDTH, dtype=jnp.bfloat16)(tokens)
    x += nn.Embed(LENGTH, WIDTH, dtype=jnp.bfloat16)(jnp.arange(LENGTH))
    causal = nn.make_causal_mask(tokens)
    for _ in range(BLOCKS):
        y = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        x += nn.MultiHeadDotProductAttention(HEADS, dtype=jnp.bfloat16)(y, mask=causal)
        y = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        y = nn.gelu(nn.Dense(4 * WIDTH, dtype=jnp.bfloat16)(y))
        x += nn.Dense(WIDTH, dtype=jnp.bfloat16)(y)
    logits = nn.Dense(VOCABULARY)(nn.LayerNorm()(x))
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"next": logits[:, -1].argmax(-1)})
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(-1)
    return est.EstimatorSpec(
        mode, loss=losses, optimizer=optax.adamw(1e-3), metrics={"perplexity": jnp.exp(losses)}
    )


class Case(NamedTuple):
    """A model and the kind of batches that it is compiled for."""

    model_fn: Callable[..., Any]
    params: dict[str, Any]
    spec: BatchSpec


def _spec(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


CASES = {
    "digits": Case(
        digits.model_fn,
        {"hidden": (256, 256), "steps": 1500},
        ({"image": _spec(np.float32, 64, 8, 8)}, _spec(np.int32, 64)),
    ),
    "transformer": Case(
        transformer,
        {},
        ({"tokens": _spec(np.int32, 8, LENGTH)}, _spec(np.int32, 8, LENGTH)),
    ),
}


class LoopsOnTpu:
    """The loops of one case for the devices of `TOPOLOGY`, with the product's own parts."""

    def __init__(self, case: Case):
        devices = topologies.get_topology_desc(TOPOLOGY, platform="tpu").devices
        config = est.RunConfig(devices=DeviceConfig(devices=devices), iterations_per_loop=50)
        self._spec = case.spec
        self._steps = config.steps_per_dispatch
        self._placement = Placement.make(config.devices)
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
        return carry, self._programs.predict(None).metadata(carry, frozen, batches)

    def _batches(self, mode: est.ModeKeys, features: Any, labels: Any, *, mask: bool) -> Batches:
        spec = (features, labels)
        outline = self._programs.initializer(mode, spec).outline
        capacity = self._programs.capacity(mode, spec, outline, self._steps)
        batch_size = jax.tree.leaves(features)[0].shape[0]
        one = Batches(features, labels, _spec(np.bool_, batch_size) if mask else None)
        sharding = self._placement.for_batch_size(batch_size)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (capacity, *leaf.shape), leaf.dtype, sharding=sharding
            ),
            one,
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
    return {
        "carried_arrays": len(jax.tree.leaves(carry)),
        "aliased_bytes": metadata.aliased_bytes,
        "hlo_text": metadata.hlo_text,
    }


def main(name: str) -> None:
    loops = LoopsOnTpu(CASES[name])
    json.dump(
        {
            "train": found(*loops.train()),
            "evaluate": found(*loops.evaluate()),
            "predict": found(*loops.predict()),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
