"""Looks into one training step: every layer, the loss, and every gradient, in the order of work."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import checkify

from estimator.batches import Batches
from estimator.metrics import mean_loss
from estimator.model import Model
from estimator.spec import ModeKeys
from estimator.state import TrainState
from estimator.steps import step_rng
from estimator.tensor_report import Kind, TensorReport, TensorStats
from hooks.stacks import place_of_error


def trace_step(model: Model, state: TrainState, batch: Batches, *, seed: int) -> TensorReport:
    """Runs one training step on `state`, which stays as it is, and reports on its tensors.

    The layers are those of linen, however they are called: inline, in a module that is given, in
    a loop (a layer is then as bad as in the worst of its turns), or made anew by `nn.remat`. Of
    models that are not of linen all the rest is reported.

    Args:
      model: what is trained.
      state: before the step.
      batch: of the step, its arrays `[batch, ...]`.
      seed: of the random numbers.

    Raises:
      Whatever model_fn raises, as itself.
    """
    optimizers: list[Any] = []

    def loss_fn(params: Any, state: TrainState, batch: Batches) -> jax.Array:
        spec, _ = model.apply(
            {"params": params, **state.model_state},
            batch.features,
            batch.labels,
            ModeKeys.TRAIN,
            step=state.step,
            rng=step_rng(seed, state.step),
            mask=batch.mask,
        )
        optimizers.append(spec.optimizer)
        return mean_loss(spec.loss, batch.mask)

    layers = _Layers()

    def step(state: TrainState, batch: Batches) -> dict[Kind, dict[str, Any]]:
        with nn.intercept_methods(layers.intercept):
            loss, grads = jax.value_and_grad(loss_fn)(state.params, state, batch)
        updates, _ = optax.with_extra_args_support(optimizers[-1]).update(
            grads, state.opt_state, state.params, value=loss, grad=grads
        )
        return {
            Kind.INPUT: _named({"features": batch.features, "labels": batch.labels}),
            Kind.VARIABLE: _named(state.params) | _named(state.model_state),
            Kind.LOSS: {"loss": loss},
            Kind.GRADIENT: _named(grads),
            Kind.UPDATED: _named(optax.apply_updates(state.params, updates)),
        }

    def measured(state: TrainState, batch: Batches) -> dict[Kind, dict[str, Any]]:
        made = step(state, batch)
        shapes.update(made)
        return jax.tree.map(_numbers_of, made)

    shapes: dict[Kind, dict[str, Any]] = {}
    numbers = jax.device_get(jax.jit(measured)(state, batch))
    jax.effects_barrier()
    stats = {
        kind: {
            name: _stats(kind, name, shapes[kind][name], values) for name, values in named.items()
        }
        for kind, named in numbers.items()
    }
    tensors = [
        *stats[Kind.INPUT].values(),
        *stats[Kind.VARIABLE].values(),
        *layers.forward(),
        *stats[Kind.LOSS].values(),
        *layers.backward(stats[Kind.GRADIENT]),
        *stats[Kind.UPDATED].values(),
    ]
    operation = None
    if any(tensor.nan for tensor in tensors):
        operation = _first_nan(jax.grad(loss_fn), state.params, state, batch)
    return TensorReport(step=int(state.step) + 1, tensors=tensors, operation=operation)


class _Layers:
    """Listens to the layers of linen while a step is traced, and to their numbers when it runs.

    Each output of a layer has a number: its place in the trace, so in the order of work, and in
    the opposite order of the work on gradients.
    """

    def __init__(self) -> None:
        self._outputs: list[tuple[str, str, Any]] = []  # path of the layer, name, shape
        self._lock = threading.Lock()
        self._numbers: dict[tuple[Kind, int], np.ndarray] = {}

    def intercept(
        self,
        method: Callable[..., Any],
        args: Any,
        kwargs: Any,
        context: nn.module.InterceptorContext,
    ) -> Any:
        """Calls a method of a layer; see `flax.linen.intercept_methods`."""
        returned = method(*args, **kwargs)
        if context.method_name == "setup":
            return returned
        path = "/".join(context.module.path)
        name = path or type(context.module).__name__
        if context.method_name != "__call__":
            name = f"{name}.{context.method_name}"
        return jax.tree_util.tree_map_with_path(
            lambda where, leaf: self._heard(path, name + jax.tree_util.keystr(where), leaf),
            returned,
        )

    def forward(self) -> Iterator[TensorStats]:
        """Yields the outputs in the order in which they were made."""
        for index in self._ran():
            yield self._stats_of(Kind.OUTPUT, index)

    def backward(self, gradients: Mapping[str, TensorStats]) -> Iterator[TensorStats]:
        """Yields the gradients of outputs, from the last one to the first, each followed by
        those of the layer's own parameters if it made no earlier output."""
        left = dict(gradients)
        ran = self._ran()
        paths = [self._outputs[index][0] for index in ran]
        for place, index in reversed(list(enumerate(ran))):
            path = paths[place]
            if (Kind.OUTPUT_GRADIENT, index) in self._numbers:
                yield self._stats_of(Kind.OUTPUT_GRADIENT, index)
            if path not in paths[:place]:
                for parameter in [p for p in left if p.rpartition("/")[0] == path]:
                    yield left.pop(parameter)
        yield from left.values()

    def _ran(self) -> list[int]:
        """What was traced and did run: a loop is traced more often."""
        return [i for i in range(len(self._outputs)) if (Kind.OUTPUT, i) in self._numbers]

    def _stats_of(self, kind: Kind, index: int) -> TensorStats:
        _, name, shape = self._outputs[index]
        alike = [i for i in self._ran() if self._outputs[i][1] == name]
        if len(alike) > 1:
            name = f"{name} (call {alike.index(index) + 1})"
        return _stats(kind, name, shape, self._numbers[kind, index])

    def _heard(self, path: str, name: str, leaf: Any) -> Any:
        if not _counts(leaf):
            return leaf
        index = len(self._outputs)
        self._outputs.append((path, name, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)))

        def tell(kind: Kind, values: Any) -> None:
            jax.debug.callback(functools.partial(self._note, kind, index), _numbers_of(values))

        @jax.custom_vjp
        def same(values: Any) -> Any:
            tell(Kind.OUTPUT, values)
            return values

        def backward(_: None, gradient: Any) -> tuple[Any]:
            tell(Kind.OUTPUT_GRADIENT, gradient)
            return (gradient,)

        same.defvjp(lambda values: (same(values), None), backward)
        return same(leaf)

    def _note(self, kind: Kind, index: int, numbers: np.ndarray) -> None:
        with self._lock:
            before = self._numbers.get((kind, index), numbers)
            self._numbers[kind, index] = np.maximum(before, numbers)


def _first_nan(function: Callable[..., Any], *args: Any) -> str | None:
    """Returns which operation made the first NaN, and where, or None if none did."""
    error, _ = jax.jit(checkify.checkify(function, errors=checkify.nan_checks))(*args)
    try:
        error.throw()
    except checkify.JaxRuntimeError as found:
        # Only its cause knows where the operation stands; of a gradient, where it is derived from.
        place = None if found.__cause__ is None else place_of_error(found.__cause__)
        return f"{str(found).rstrip('.')}" + ("" if place is None else f", at {place}")
    return None


def _named(tree: Any) -> dict[str, Any]:
    """Returns the arrays of real or complex numbers of a tree by name."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if _counts(leaf)
    }


def _counts(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact) and leaf.size > 0


def _numbers_of(array: Any) -> jax.Array:
    """Returns norm, largest, fraction of NaN and of infinities, `[4]` float32."""
    finite = jnp.where(jnp.isfinite(array), jnp.abs(array), 0).astype(jnp.float32)
    largest = jnp.max(finite)
    scale = jnp.where(largest > 0, largest, 1)  # of numbers whose squares overflow
    norm = scale * jnp.sqrt(jnp.sum((finite / scale) ** 2))
    nan, infinite = jnp.mean(jnp.isnan(array)), jnp.mean(jnp.isinf(array))
    return jnp.stack([norm, largest, nan, infinite]).astype(jnp.float32)


def _stats(kind: Kind, name: str, shape: Any, numbers: np.ndarray) -> TensorStats:
    norm, largest, nan, inf = numbers.tolist()
    return TensorStats(
        kind=kind,
        name=name,
        shape=shape.shape,
        dtype=str(shape.dtype),
        norm=norm,
        largest=largest,
        nan=nan,
        inf=inf,
    )
