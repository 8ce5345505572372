"""What a model_fn offers for serving: its export outputs, one object a signature."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from estimator.export.tensor_spec import leaf_names


class ExportOutput:
    """The outputs of one signature. Use one of the subclasses.

    Attributes:
      method: how a server offers the signature: "predict", "classify" or "regress".
    """

    method: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Returns the arrays `[batch, ...]` under the names that TensorFlow Serving gives them."""
        raise NotImplementedError

    def converted(self, convert: Callable[[Any], Any]) -> ExportOutput:
        """Returns the same signature with `convert(array)` in place of each array."""
        output = copy.copy(self)
        vars(output).update(jax.tree.map(convert, vars(self)))
        return output


class PredictOutput(ExportOutput):
    """Any arrays, by name.

    Args:
      outputs: pytree, mostly a dict, of arrays `[batch, ...]`. The name of one is the path to
        it: `"boxes/center"` for `outputs["boxes"]["center"]`; one array alone is `"output"`.

    Raises:
      TypeError: something in it is no array.
      ValueError: no outputs, one without a batch dimension, or two of the same name.
    """

    method = "predict"

    def __init__(self, outputs: Any):
        named = leaf_names(outputs, what="PredictOutput.outputs", root="output")
        if not named:
            raise ValueError("PredictOutput.outputs is empty. Give at least one array.")
        for name, value in named.items():
            _array(f"PredictOutput.outputs[{name!r}]", value, "an array [batch, ...]")
            if value.ndim == 0:
                raise ValueError(
                    f"PredictOutput.outputs[{name!r}] is the scalar {_describe(value)}; expected "
                    "an array [batch, ...] with a row for every example."
                )
        self.outputs = named

    def as_dict(self) -> dict[str, Any]:
        return dict(self.outputs)


class ClassificationOutput(ExportOutput):
    """A score for every class, and perhaps the label of every class.

    Args:
      scores: `[batch, classes]`, floating point.
      classes: `[batch, classes]`, the label of each score; labels are numbers, since JAX has no
        strings. Without them, a class is known by its position.

    Raises:
      TypeError: not arrays, or scores that are not floating point.
      ValueError: another shape.
    """

    method = "classify"

    def __init__(self, scores: Any, classes: Any = None):
        _float_array("ClassificationOutput.scores", scores)
        _check_rank("ClassificationOutput.scores", scores, ("batch", "classes"))
        if classes is not None:
            _array("ClassificationOutput.classes", classes, "an array [batch, classes], or None")
            _check_rank("ClassificationOutput.classes", classes, ("batch", "classes"))
            if classes.shape != scores.shape:
                raise ValueError(
                    f"ClassificationOutput.classes is {_describe(classes)} and scores is "
                    f"{_describe(scores)}; both must be [batch, classes] of the same sizes."
                )
        self.scores = scores
        self.classes = classes

    def as_dict(self) -> dict[str, Any]:
        outputs = {"scores": self.scores}
        if self.classes is not None:
            outputs["classes"] = self.classes
        return outputs


class RegressionOutput(ExportOutput):
    """One number for every example.

    Args:
      value: `[batch]`, floating point.

    Raises:
      TypeError: no array of floating point numbers.
      ValueError: another shape.
    """

    method = "regress"

    def __init__(self, value: Any):
        _float_array("RegressionOutput.value", value)
        _check_rank("RegressionOutput.value", value, ("batch",))
        self.value = value

    def as_dict(self) -> dict[str, Any]:
        return {"outputs": self.value}


def _array(name: str, value: Any, expected: str) -> None:
    if not (hasattr(value, "dtype") and hasattr(value, "shape")):
        raise TypeError(f"{name} is of type {type(value).__name__}; expected {expected}.")


def _float_array(name: str, value: Any) -> None:
    _array(name, value, "a floating point array")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"{name} is {_describe(value)}; expected a floating point array.")


def _check_rank(name: str, value: Any, axes: tuple[str, ...]) -> None:
    if value.ndim == len(axes):
        return
    hint = ""
    if value.ndim == len(axes) + 1 and value.shape[-1] == 1:
        hint = " Drop the last dimension: x.squeeze(-1)."
    elif value.ndim == len(axes) - 1:
        hint = " Add a dimension: x[:, None]." if value.ndim else ""
    raise ValueError(
        f"{name} is {_describe(value)}; expected the dimensions [{', '.join(axes)}].{hint}"
    )


def _describe(value: Any) -> str:
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
