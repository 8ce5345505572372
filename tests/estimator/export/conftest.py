"""A small linear model, with its answers computed by NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimator.export import ClassificationOutput, PredictOutput, serving_input


@dataclasses.dataclass(frozen=True, eq=False)
class LinearModel:
    """`softmax(x @ kernel + bias)` of `[batch, 3]` features into 4 classes."""

    kernel: np.ndarray
    bias: np.ndarray

    @property
    def variables(self):
        return {"params": {"dense": {"kernel": jnp.asarray(self.kernel), "bias": self.bias}}}

    @property
    def inputs(self):
        return serving_input({"x": np.zeros((8, 3), np.float32)})

    @staticmethod
    def serve(variables, features):
        dense = variables["params"]["dense"]
        logits = features["x"] @ dense["kernel"] + dense["bias"]
        probs = jax.nn.softmax(logits)
        return {
            "serving_default": PredictOutput({"class": logits.argmax(-1), "probs": probs}),
            "classify": ClassificationOutput(probs),
        }

    def answer(self, x):
        """Returns what the model says, in float64."""
        logits = x.astype(np.float64) @ self.kernel.astype(np.float64) + self.bias
        exp = np.exp(logits - logits.max(-1, keepdims=True))
        return {"class": logits.argmax(-1), "probs": exp / exp.sum(-1, keepdims=True)}


@pytest.fixture
def model():
    rng = np.random.default_rng(0)
    return LinearModel(
        rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    )


@pytest.fixture
def rows():
    """Makes `[n, 3]` features."""
    rng = np.random.default_rng(1)
    return lambda n: rng.normal(size=(n, 3)).astype(np.float32)
