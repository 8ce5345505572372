"""What a model_fn returns, and the modes in which it is called."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from hooks import Hook
from hooks.checks import list_of_hooks


class ModeKeys(enum.StrEnum):
    """What model_fn and input_fn are called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


_HOOKS = {
    ModeKeys.TRAIN: "training_hooks",
    ModeKeys.EVAL: "evaluation_hooks",
    ModeKeys.PREDICT: "prediction_hooks",
}


@dataclasses.dataclass(frozen=True, eq=False)
class HostFunction:
    """A function that runs on the host on tensors that leave the device.

    Attributes:
      name: the argument of EstimatorSpec it was given as, for errors.
      fn: takes numpy arrays: by position if `tensors` is a sequence, by name if a mapping.
      tensors: the arrays of one step.
    """

    name: str
    fn: Callable[..., Any]
    tensors: Sequence[Any] | Mapping[str, Any]

    @classmethod
    def parse(cls, name: str, given: Any, *, injected: tuple[str, ...] = ()) -> HostFunction:
        """Checks a `(fn, tensors)` pair, and that `fn` can be called with `tensors`.

        Args:
          name: the argument of EstimatorSpec.
          given: what the user passed there.
          injected: names that the caller passes to `fn` besides, where `fn` has them.

        Raises:
          TypeError: no such pair, or names or counts that do not fit.
        """
        if not (isinstance(given, tuple) and len(given) == 2 and callable(given[0])):
            raise TypeError(
                f"{name} must be a pair (function, tensors), got {type(given).__name__}. "
                f"Write {name}=(my_function, {{'loss': loss}})."
            )
        fn, tensors = given
        if not isinstance(tensors, Mapping | list | tuple) or hasattr(tensors, "_fields"):
            raise TypeError(
                f"The tensors of {name} must be a list (passed by position) or a dict (passed by "
                f"name), got {type(tensors).__name__}."
            )
        host_function = cls(name, fn, tensors)
        host_function._check_signature(injected)
        return host_function

    def _check_signature(self, injected: tuple[str, ...]) -> None:
        try:
            signature = inspect.signature(self.fn)
        except ValueError:  # some builtins have no signature to check
            return
        extra = {name: 0 for name in injected if name in signature.parameters}
        try:
            if isinstance(self.tensors, Mapping):
                signature.bind(**{**extra, **self.tensors})
            else:
                signature.bind(*self.tensors, **extra)
        except TypeError as error:
            given = (
                f"the names {sorted(self.tensors)}"
                if isinstance(self.tensors, Mapping)
                else f"{len(self.tensors)} tensors by position"
            )
            raise TypeError(
                f"The function of {self.name} has the signature {signature}, but {self.name} gives "
                f"it {given}: {error}."
            ) from error

    def takes(self, name: str) -> bool:
        """Says whether the function has an argument `name` that the tensors do not fill."""
        if isinstance(self.tensors, Mapping) and name in self.tensors:
            return False
        try:
            return name in inspect.signature(self.fn).parameters
        except ValueError:
            return False

    def call(self, tensors: Sequence[Any] | Mapping[str, Any], **injected: Any) -> Any:
        """Calls the function with the values of one step."""
        if isinstance(tensors, Mapping):
            return self.fn(**tensors, **injected)
        return self.fn(*tensors, **injected)


@dataclasses.dataclass(frozen=True, eq=False)
class EstimatorSpec:
    """What a model_fn returns: the tensors and operations of one step in one mode.

    Attributes:
      mode: the mode that model_fn was called with.
      predictions: pytree of arrays `[batch, ...]`; required in PREDICT.
      loss: `[batch]`, one loss an example, or a scalar that is the mean over the batch;
        required in TRAIN and EVAL. Prefer `[batch]`: the estimator takes the mean over the
        real examples, and a last, partial batch goes through the program of the full ones,
        padded; but at its true size in TRAIN, at the price of a compilation, if there are batch
        statistics or a host_call with tensors `[batch, ...]`. A loss that couples examples has
        to leave out those where `context.mask` is False.
      optimizer: an `optax.GradientTransformation`; required in TRAIN.
      metrics: name -> array `[batch]` with a value per example (the mean is reported), or an
        object with `empty()`, `merge(other)` and `compute()`, such as a `clu.metrics.Metric`.
      eval_metrics: `(metric_fn, tensors)`: `metric_fn` runs on the host, once a batch, on the
        real rows of `tensors` `[batch, ...]`, and returns a dict of scalars (means over the
        batch), of arrays `[rows]`, or of objects with `merge` and `compute`.
      host_call: `(fn, tensors)`: `fn` runs on the host once a step, in order, on numpy arrays.
        If it has an argument `step`, it is given the global step after the update, an int.
      export_outputs: signature name -> `export.PredictOutput` and its kin, for serving.
      training_hooks: run in TRAIN, after those that are given to `train`. They see what leaves
        the device; the tensors of model_fn have no values yet when it makes them. model_fn is
        traced more than once: the hooks of its first trace run, in every run on such batches.
      evaluation_hooks: likewise in EVAL.
      prediction_hooks: likewise in PREDICT.

    Raises:
      TypeError: an attribute of a type that it cannot have.
      ValueError: the mode needs an attribute that is not given.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    optimizer: Any = None
    metrics: Mapping[str, Any] | None = None
    eval_metrics: Any = None
    host_call: Any = None
    export_outputs: Mapping[str, Any] | None = None
    training_hooks: Sequence[Hook] | None = None
    evaluation_hooks: Sequence[Hook] | None = None
    prediction_hooks: Sequence[Hook] | None = None

    def __post_init__(self) -> None:
        if self.mode not in list(ModeKeys):
            raise ValueError(
                f"EstimatorSpec has the mode {self.mode!r}. Pass on the mode that model_fn is "
                f"given, one of {', '.join(f'ModeKeys.{key.name}' for key in ModeKeys)}."
            )
        mode = ModeKeys(self.mode)
        if mode is not ModeKeys.PREDICT:
            self._require("loss", mode, "an array [batch], or a scalar mean over the batch")
            dtype = getattr(self.loss, "dtype", None)
            if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
                raise TypeError(
                    f"EstimatorSpec.loss must be a floating point array, got "
                    f"{_describe(self.loss)}."
                )
        if mode is ModeKeys.TRAIN:
            self._require("optimizer", mode, "an optax optimizer such as optax.adam(1e-3)")
            if not (hasattr(self.optimizer, "init") and hasattr(self.optimizer, "update")):
                raise TypeError(
                    "EstimatorSpec.optimizer must be an optax.GradientTransformation such as "
                    f"optax.adam(1e-3), got {type(self.optimizer).__name__}."
                )
        if mode is ModeKeys.PREDICT:
            self._require("predictions", mode, "a dict of arrays [batch, ...]")
        for name in ("metrics", "export_outputs"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"EstimatorSpec.{name} must be a dict, got {type(value).__name__}.")
        reserved = {"loss", "global_step"} & set(self.metrics or ())
        if reserved:
            raise ValueError(
                f"EstimatorSpec.metrics must not use the names {sorted(reserved)}: evaluate() "
                "reports its own values under them."
            )
        self.parsed_host_call()
        self.parsed_eval_metrics()
        for name in _HOOKS.values():
            checked = list_of_hooks(f"EstimatorSpec.{name}", getattr(self, name))
            object.__setattr__(self, name, checked)

    def _require(self, name: str, mode: ModeKeys, what: str) -> None:
        if getattr(self, name) is None:
            raise ValueError(
                f"model_fn returned no {name} in mode ModeKeys.{mode.name}. "
                f"Pass {name}= to EstimatorSpec: {what}."
            )

    @property
    def hooks(self) -> Sequence[Hook]:
        """The hooks of the mode."""
        return getattr(self, _HOOKS[ModeKeys(self.mode)])

    def parsed_host_call(self) -> HostFunction | None:
        """Returns host_call, checked."""
        if self.host_call is None:
            return None
        return HostFunction.parse("host_call", self.host_call, injected=("step",))

    def parsed_eval_metrics(self) -> HostFunction | None:
        """Returns eval_metrics, checked."""
        if self.eval_metrics is None:
            return None
        return HostFunction.parse("eval_metrics", self.eval_metrics)


def _describe(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__
