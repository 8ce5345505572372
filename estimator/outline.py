"""What a spec promises, checked on shapes before anything is compiled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from estimator.metrics import is_mergeable
from estimator.spec import EstimatorSpec, HostFunction, ModeKeys
from hooks import Hook


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outline:
    """The static side of an EstimatorSpec: what loops, infeed and outfeed need to know.

    Attributes:
      host_call: with `jax.ShapeDtypeStruct`s for tensors, or None.
      eval_metrics: likewise.
      predictions: shapes of the predictions in PREDICT mode, else None.
      mergeable: the classes of the metrics that merge themselves, by name; EVAL mode only.
      maskable: whether padding can be left out of every number by a mask. If not, a partial
        batch has to be run at its true size.
      output_bytes: what leaves the device for one step.
      hooks: of the mode.
    """

    host_call: HostFunction | None
    eval_metrics: HostFunction | None
    predictions: Any
    mergeable: Mapping[str, type[Any]]
    maskable: bool
    output_bytes: int
    hooks: Sequence[Hook]

    @classmethod
    def of(
        cls,
        spec: EstimatorSpec,
        mode: ModeKeys,
        batch_size: int,
        *,
        keeps_state: bool = False,
        shares: int = 1,
    ) -> Outline:
        """Checks the shapes in `spec` and returns its outline.

        Args:
          spec: of a batch, or a replica's share of one.
          mode: in which it was made.
          batch_size: examples of the batch or share.
          keeps_state: whether the model changes variables that are no parameters, such as
            batch statistics, which a mask would not reach.
          shares: that make up the batch.

        Raises:
          ValueError: an array lacks the batch dimension that its use needs.
          TypeError: a metric of a kind that is not known.
        """
        host_call = _shapes_only(spec.parsed_host_call())
        eval_metrics = _shapes_only(spec.parsed_eval_metrics())
        if mode is ModeKeys.PREDICT:
            _check_leading("predictions", spec.predictions, batch_size)
            leaving = [spec.predictions]
        else:
            _check_loss(spec.loss, batch_size)
            for name, metric in (spec.metrics or {}).items():
                _check_metric(name, metric, batch_size)
            leaving = [host_call.tensors] if host_call and mode is ModeKeys.TRAIN else []
        if mode is ModeKeys.EVAL and eval_metrics is not None:
            _check_leading("eval_metrics", eval_metrics.tensors, batch_size)
            leaving = [eval_metrics.tensors]
        mergeable = {
            name: type(metric)
            for name, metric in (spec.metrics or {}).items()
            if is_mergeable(metric)
        }
        return cls(
            host_call=host_call,
            eval_metrics=eval_metrics,
            predictions=_shapes(spec.predictions) if mode is ModeKeys.PREDICT else None,
            mergeable=mergeable if mode is ModeKeys.EVAL else {},
            maskable=mode is ModeKeys.PREDICT
            or not (
                spec.loss.ndim == 0
                or mergeable
                or (mode is ModeKeys.TRAIN and (keeps_state or _by_example(host_call, batch_size)))
            ),
            output_bytes=shares
            * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(leaving)),
            hooks=spec.hooks,
        )

    def empty_metrics(self) -> dict[str, Any]:
        """Returns the mergeable metrics before any batch, made anew."""
        return {name: metric.empty() for name, metric in self.mergeable.items()}


def _shapes_only(host_function: HostFunction | None) -> HostFunction | None:
    if host_function is None:
        return None
    return dataclasses.replace(host_function, tensors=_shapes(_arrays(host_function)))


def _by_example(host_call: HostFunction | None, batch_size: int) -> bool:
    """Says whether a tensor that leaves the device may have an entry for each example."""
    tensors = jax.tree.leaves(host_call.tensors) if host_call else []
    return any(leaf.shape[:1] == (batch_size,) for leaf in tensors)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _arrays(host_function: HostFunction) -> Any:
    for path, leaf in jax.tree_util.tree_leaves_with_path(host_function.tensors):
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(
                f"{host_function.name}{jax.tree_util.keystr(path)} must be an array, got "
                f"{type(leaf).__name__}. Wrap it in jnp.asarray, or bind it in the function."
            )
    return host_function.tensors


def _check_loss(loss: jax.Array, batch_size: int) -> None:
    if loss.shape not in ((), (batch_size,)):
        raise ValueError(
            f"loss has the shape {list(loss.shape)}; expected [{batch_size}], one loss for each "
            "example of the batch, or a scalar mean over the batch. Reduce the other axes."
        )


def _check_metric(name: str, metric: Any, batch_size: int) -> None:
    if is_mergeable(metric):
        if not hasattr(type(metric), "empty"):
            raise TypeError(
                f"metrics[{name!r}] has merge and compute, but its class "
                f"{type(metric).__name__} has no empty() to start from."
            )
        return
    if not hasattr(metric, "shape") or not hasattr(metric, "dtype"):
        raise TypeError(
            f"metrics[{name!r}] must be an array [{batch_size}] with a value for each example, or "
            f"an object with empty, merge and compute, got {type(metric).__name__}."
        )
    if jax.numpy.issubdtype(metric.dtype, jax.numpy.complexfloating):
        raise TypeError(
            f"metrics[{name!r}] has the dtype {metric.dtype}; a mean over examples is a real "
            "number. Pass its real and imaginary parts as two metrics."
        )
    if metric.shape != (batch_size,):
        raise ValueError(
            f"metrics[{name!r}] has the shape {list(metric.shape)}; expected [{batch_size}], one "
            "value for each example of the batch, so that padding and a smaller last batch "
            f"count right. Pass the values before their mean (a value that is the same for all "
            f"examples: jnp.full([{batch_size}], value))."
        )


def _check_leading(what: str, tree: Any, batch_size: int) -> None:
    if not jax.tree.leaves(tree):
        raise ValueError(f"{what} holds no arrays; expected at least one [{batch_size}, ...].")
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = f"{what}{jax.tree_util.keystr(path)}"
        shape = getattr(leaf, "shape", None)
        if shape is None:
            raise TypeError(f"{name} must be an array, got {type(leaf).__name__}.")
        if shape[:1] != (batch_size,):
            raise ValueError(
                f"{name} has the shape {list(shape)}; expected [{batch_size}, ...], one entry for "
                "each example of the batch, since the padding of a partial batch is cut off. "
                f"Pass the values before their mean (a value that is the same for all examples: "
                f"jnp.full([{batch_size}], value))."
            )
