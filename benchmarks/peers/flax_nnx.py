"""Flax NNX: a step under `nnx.jit`, as its guides write it, with and without `cached_partial`."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks import tasks
from benchmarks.peers.base import Peer
from benchmarks.tasks import LEARNING_RATE, Task


class MLP(nnx.Module):
    def __init__(self, task: Task, rngs: nnx.Rngs):
        (features,) = task.example_shape
        self.hidden = nnx.Linear(features, task.width, rngs=rngs)
        self.out = nnx.Linear(task.width, task.classes, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


class ConvNet(nnx.Module):
    def __init__(self, task: Task, rngs: nnx.Rngs):
        height, width, channels = task.example_shape
        filters = task.width
        self.first = nnx.Conv(channels, filters, (3, 3), rngs=rngs)
        self.second = nnx.Conv(filters, 2 * filters, (3, 3), rngs=rngs)
        pixels = (height // 4) * (width // 4)
        self.hidden = nnx.Linear(pixels * 2 * filters, 8 * filters, rngs=rngs)
        self.out = nnx.Linear(8 * filters, task.classes, rngs=rngs)

    def __call__(self, x):
        for conv in (self.first, self.second):
            x = nnx.max_pool(nnx.relu(conv(x)), (2, 2), strides=(2, 2))
        return self.out(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))


class Block(nnx.Module):
    def __init__(self, task: Task, rngs: nnx.Rngs):
        width = task.width
        self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            tasks.TRANSFORMER_HEADS, width, decode=False, rngs=rngs
        )
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.hidden = nnx.Linear(width, 4 * width, rngs=rngs)
        self.out = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.attention_norm(x), mask=mask)
        return x + self.out(nnx.gelu(self.hidden(self.norm(x))))


class Transformer(nnx.Module):
    def __init__(self, task: Task, rngs: nnx.Rngs):
        (length,) = task.example_shape
        self.tokens = nnx.Embed(task.classes, task.width, rngs=rngs)
        self.positions = nnx.Embed(length, task.width, rngs=rngs)
        self.blocks = nnx.List(Block(task, rngs) for _ in range(tasks.TRANSFORMER_LAYERS))
        self.norm = nnx.LayerNorm(task.width, rngs=rngs)
        self.out = nnx.Linear(task.width, task.classes, rngs=rngs)

    def __call__(self, tokens):
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.out(self.norm(x))


MODELS = {"mlp": MLP, "convnet": ConvNet, "transformer": Transformer}


def train_step(model, optimizer, inputs, labels):
    def mean_loss(model):
        logits = model(inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, grads)
    return loss


class Train(Peer):
    """A loop over `nnx.jit`; each batch is gathered and dispatched by itself."""

    def __init__(self, task: Task, cached: bool = False):
        self.inputs, self.labels = task.data()
        self.batches = task.shuffled()
        model = MODELS[task.model](task, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(LEARNING_RATE), wrt=nnx.Param)
        if cached:
            self.step = nnx.cached_partial(nnx.jit(train_step), model, optimizer)
        else:
            jitted = nnx.jit(train_step)
            self.step = lambda *batch: jitted(model, optimizer, *batch)
        self.measure(0.1)

    def measure(self, secs: float) -> float:
        started = time.perf_counter()
        steps = 0
        while time.perf_counter() < started + secs:
            rows = next(self.batches)
            loss = self.step(self.inputs[rows], self.labels[rows])
            steps += 1
        jax.block_until_ready(loss)
        return steps / (time.perf_counter() - started)


class FirstStep(Train):
    """Makes a jitted step and takes it once."""

    def measure(self, secs: float) -> float:
        rows = next(self.batches)
        jax.block_until_ready(self.step(self.inputs[rows], self.labels[rows]))
        return 1.0
