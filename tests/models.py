"""Tiny models of several kinds, which learn something from numbered examples."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax

import estimator as est

VOCABULARY, LENGTH, WIDTH = 16, 8, 16


def images(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns `count` images [8, 8, 2] and which of 4 classes each is of."""
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=count, dtype=np.int32)
    image = rng.normal(size=(count, 8, 8, 2)).astype(np.float32)
    image[:, :, :, 0] += labels[:, None, None] / 2
    return {"image": image, "id": np.arange(count, dtype=np.int32)}, labels


def convnet(features: Any, labels: Any, mode: str, params: Any, context: Any) -> est.EstimatorSpec:
    """A small convolutional classifier; `params` may hold `batch_norm`: "local", or "shared" by
    the replicas."""
    training = mode == est.ModeKeys.TRAIN
    x = nn.Conv(8, (3, 3))(features["image"])
    if params.get("batch_norm"):
        axis = context.axis_name if params["batch_norm"] == "shared" else None
        x = nn.BatchNorm(use_running_average=not training, axis_name=axis, momentum=0.9)(x)
    x = nn.relu(nn.Conv(8, (3, 3), strides=(2, 2))(nn.relu(x))).mean((1, 2))
    return _classified(nn.Dense(4)(x), features, labels, mode, params)


def sentences(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns `count` sentences in which each token follows from the one before, and what
    comes next in each place."""
    start = np.random.default_rng(0).integers(VOCABULARY, size=(count, 1))
    tokens = (start + 3 * np.arange(LENGTH + 1)) % VOCABULARY
    tokens = tokens.astype(np.int32)
    return {"tokens": tokens[:, :-1], "id": np.arange(count, dtype=np.int32)}, tokens[:, 1:]


def transformer(features: Any, labels: Any, mode: str, params: Any) -> est.EstimatorSpec:
    """A causal language model of one block."""
    tokens = features["tokens"]
    x = nn.Embed(VOCABULARY, WIDTH)(tokens) + nn.Embed(LENGTH, WIDTH)(jnp.arange(LENGTH))
    mask = nn.make_causal_mask(tokens)
    x += nn.MultiHeadDotProductAttention(2, name="attention")(nn.LayerNorm()(x), mask=mask)
    y = nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm()(x)))
    x += nn.Dense(WIDTH, name="down")(y)
    return _classified(nn.Dense(VOCABULARY, name="out")(x), features, labels, mode, params)


TENSOR_RULES = [
    (r".*/attention/(query|key|value)/kernel", (None, "model")),
    (r".*/attention/out/kernel", ("model",)),
    (r".*/up/kernel", ("fsdp", "model")),
    (r".*/down/kernel", ("model", "fsdp")),
]
"""How the transformer is split by heads and by hidden units."""


def _classified(
    logits: Any, features: Any, labels: Any, mode: str, params: Any
) -> est.EstimatorSpec:
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(
            mode, predictions={"id": features["id"], "class": logits.argmax(-1)}
        )
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    losses = losses.reshape(len(losses), -1).mean(-1)
    right = (logits.argmax(-1) == labels).reshape(len(losses), -1).mean(-1)
    host_call = params.get("host_call")
    return est.EstimatorSpec(
        mode,
        loss=losses.mean() if params.get("scalar_loss") else losses,
        optimizer=params.get("optimizer", optax.adam(2e-3)),
        metrics={"accuracy": right},
        host_call=host_call and (host_call, {"id": features["id"], "loss": losses.mean()}),
    )
