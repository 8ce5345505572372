"""Keras 3 on JAX: `fit`, `predict` and `evaluate` of a compiled model."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import time
from typing import Any

import keras

from benchmarks import tasks
from benchmarks.peers.base import FixedWork, Peer
from benchmarks.tasks import LEARNING_RATE, Task

layers = keras.layers

SILENT: Any = 0  # its annotations know only "auto"


def mlp(task: Task) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(task.example_shape),
            layers.Dense(task.width, activation="relu"),
            layers.Dense(task.classes),
        ]
    )


def convnet(task: Task) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(task.example_shape),
            layers.Conv2D(task.width, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(2 * task.width, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(8 * task.width, activation="relu"),
            layers.Dense(task.classes),
        ]
    )


class Positions(layers.Layer):
    """Adds a learned vector to each position."""

    def build(self, input_shape) -> None:
        self.positions = self.add_weight(shape=tuple(input_shape[1:]), initializer="normal")

    def call(self, x):
        return x + self.positions


def transformer(task: Task) -> keras.Model:
    tokens = keras.Input(task.example_shape, dtype="int32")
    x = Positions()(layers.Embedding(task.classes, task.width)(tokens))
    for _ in range(tasks.TRANSFORMER_LAYERS):
        normed = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(
            tasks.TRANSFORMER_HEADS, task.width // tasks.TRANSFORMER_HEADS
        )
        x = x + attention(normed, normed, use_causal_mask=True)
        hidden = layers.Dense(4 * task.width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(task.width)(hidden)
    return keras.Model(tokens, layers.Dense(task.classes)(layers.LayerNormalization()(x)))


class Job:
    """A compiled model and its data."""

    def __init__(self, task: Task, steps_per_execution: int = 1):
        self.task = task
        self.inputs, self.labels = task.data()
        self.model = {"mlp": mlp, "convnet": convnet, "transformer": transformer}[task.model](task)
        self.model.compile(
            optimizer=keras.optimizers.Adam(LEARNING_RATE),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
        )


class Train(Job, Peer):
    """`fit` on shuffled arrays: on as many examples as last the time, or for as many epochs."""

    def __init__(self, task: Task, steps_per_execution: int = 1):
        super().__init__(task, steps_per_execution)
        self.chunk = max(task.loop, steps_per_execution)
        self.rate = self.fit(self.chunk)  # with its compilation
        self.rate = self.fit(self.chunk)

    def measure(self, secs: float) -> float:
        self.rate = self.fit(int(self.rate * secs))
        return self.rate

    def fit(self, about: int) -> float:
        """Returns the steps per second over `about` so many steps."""
        steps = self.task.examples // self.task.batch_size // self.chunk * self.chunk
        epochs = max(1, round(about / steps))
        if about < steps:
            steps = max(1, about // self.chunk) * self.chunk
        rows = steps * self.task.batch_size
        started = time.perf_counter()
        self.model.fit(
            self.inputs[:rows],
            self.labels[:rows],
            batch_size=self.task.batch_size,
            epochs=epochs,
            verbose=SILENT,
        )
        return epochs * steps / (time.perf_counter() - started)


class FirstStep(Job, Peer):
    """`fit` on one batch."""

    def __init__(self, task: Task):
        super().__init__(task)
        rows = task.batch_size
        self.model.fit(self.inputs[:rows], self.labels[:rows], batch_size=rows, verbose=SILENT)


class Predict(Job, FixedWork):
    """`predict`: one array for all rows; softmax and class on top, in numpy."""

    def __init__(self, task: Task, steps_per_execution: int = 1):
        super().__init__(task, steps_per_execution)
        self.work = task.examples
        self.run()

    def run(self) -> None:
        logits = self.model.predict(self.inputs, batch_size=self.task.batch_size, verbose=SILENT)
        logits.argmax(-1)


class Evaluate(Job, FixedWork):
    """`evaluate` with accuracy."""

    def __init__(self, task: Task, steps_per_execution: int = 1):
        super().__init__(task, steps_per_execution)
        self.model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
        self.work = task.examples
        self.run()

    def run(self) -> None:
        self.model.evaluate(
            self.inputs, self.labels, batch_size=self.task.batch_size, verbose=SILENT
        )
