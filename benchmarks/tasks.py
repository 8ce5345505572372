"""What the contestants train, evaluate and predict: the same model and data for each of them.

Imports NumPy only, so that every environment can read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

LEARNING_RATE = 1e-3
TRANSFORMER_LAYERS = 4
TRANSFORMER_HEADS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A model, its data, and how it is run.

    Attributes:
      model: "mlp", "convnet" or "transformer"; each peer has it in its own framework.
      width: units of the layers: hidden units of the mlp, filters of the first convolution,
        the embedding of the transformer.
      example_shape: of one example: features, pixels or tokens.
      classes: to choose from, for each example or token.
      examples: in host memory.
      batch_size: examples of a step.
      loop: steps that are handed to the device at once, where the contestant does so.
    """

    model: str
    width: int
    example_shape: tuple[int, ...]
    classes: int
    examples: int
    batch_size: int
    loop: int

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns random examples, `[examples, *example_shape]`, and their int32 labels.

        The transformer gets int32 tokens, and the token after each of them as a label; the
        others float32 numbers and one label an example.
        """
        rng = np.random.default_rng(0)
        if self.model == "transformer":
            (length,) = self.example_shape
            text = rng.integers(0, self.classes, (self.examples, length + 1), np.int32)
            return text[:, :-1].copy(), text[:, 1:].copy()
        inputs = rng.standard_normal((self.examples, *self.example_shape), np.float32)
        return inputs, rng.integers(0, self.classes, self.examples, np.int32)

    def shuffled(self) -> Iterator[np.ndarray]:
        """Yields the indices of one batch after another, in a new order for each epoch."""
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(self.examples)
            for start in range(0, self.examples - self.batch_size + 1, self.batch_size):
                yield order[start : start + self.batch_size]


MLP = Task(
    model="mlp",
    width=128,
    example_shape=(64,),
    classes=10,
    examples=50_000,
    batch_size=32,
    loop=100,
)
CONVNET = Task(
    model="convnet",
    width=32,
    example_shape=(28, 28, 1),
    classes=10,
    examples=10_000,
    batch_size=128,
    loop=10,
)
TRANSFORMER = Task(
    model="transformer",
    width=256,
    example_shape=(128,),
    classes=256,
    examples=1_000,
    batch_size=4,
    loop=10,
)
PREDICT = dataclasses.replace(MLP, examples=100_000, batch_size=1_000)
EVALUATE = PREDICT
