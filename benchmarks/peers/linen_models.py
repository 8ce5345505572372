"""The models in flax.linen, as functions that make their layers inline."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks import tasks
from benchmarks.tasks import Task


def logits(task: Task, x):
    """Returns `[batch, classes]`, or `[batch, length, classes]` for tokens."""
    return {"mlp": mlp, "convnet": convnet, "transformer": transformer}[task.model](task, x)


def mlp(task: Task, x):
    x = nn.relu(nn.Dense(task.width)(x))
    return nn.Dense(task.classes)(x)


def convnet(task: Task, x):
    for features in (task.width, 2 * task.width):
        x = nn.relu(nn.Conv(features, (3, 3))(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
    x = nn.relu(nn.Dense(8 * task.width)(x.reshape(x.shape[0], -1)))
    return nn.Dense(task.classes)(x)


def transformer(task: Task, tokens):
    (length,) = task.example_shape
    x = nn.Embed(task.classes, task.width)(tokens)
    x = x + nn.Embed(length, task.width)(jnp.arange(length))
    mask = nn.make_causal_mask(tokens)
    for _ in range(tasks.TRANSFORMER_LAYERS):
        x = x + nn.MultiHeadDotProductAttention(tasks.TRANSFORMER_HEADS)(
            nn.LayerNorm()(x), mask=mask
        )
        hidden = nn.gelu(nn.Dense(4 * task.width)(nn.LayerNorm()(x)))
        x = x + nn.Dense(task.width)(hidden)
    return nn.Dense(task.classes)(nn.LayerNorm()(x))


def losses(logits, labels):
    """Returns the loss of each example, `[batch]`."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return loss.reshape(loss.shape[0], -1).mean(-1)


def predictions(logits):
    """Returns the class of each example and the probabilities of all."""
    return {"class": logits.argmax(-1), "probabilities": jax.nn.softmax(logits)}
