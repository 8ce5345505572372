"""The steps of train, evaluate and predict: pure functions of one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from estimator.batches import Batches
from estimator.histograms import take_if
from estimator.metrics import is_mergeable, masked_sum, mean_loss, step_values
from estimator.model import Model
from estimator.spec import ModeKeys
from estimator.state import TrainState


class Outputs(NamedTuple):
    """What one step sends out of the loop, which returns it stacked.

    Attributes:
      every_step: pytree that leaves on every step.
      every_n: pytree that leaves only on steps that are multiples of n.
    """

    every_step: Any
    every_n: Any = ()


Step = Callable[[Any, Any, Batches], tuple[Any, Outputs]]
"""One step: (carry, constants, one batch) -> (carry, outputs)."""


def step_rng(seed: int, step: Any) -> jax.Array:
    """Returns the random key of a step, which depends on the seed and the step only."""
    return jax.random.fold_in(jax.random.key(seed), step)


class TrainOutputs(NamedTuple):
    """What a training step sends out every step.

    Attributes:
      loss: float32 scalar.
      metrics: float32 scalars by name.
      histograms: of parameters and gradients, at the steps that are due; an empty tuple if
        none ever are.
    """

    loss: Any
    metrics: dict[str, Any]
    histograms: Any = ()


def train_step(model: Model, *, seed: int, histograms_every_n: int | None = None) -> Step:
    """Returns the step of training: its carry is a TrainState, `every_step` of its outputs
    a TrainOutputs, `every_n` the host_call tensors (an empty tuple if there are none).

    Args:
      model: what is trained.
      seed: of the random numbers.
      histograms_every_n: steps between those of which histograms are taken; None for none.
    """

    def step(state: TrainState, constants: Any, batch: Batches) -> tuple[TrainState, Outputs]:
        specs = []

        def loss_fn(params: Any) -> tuple[jax.Array, tuple[Any, Outputs]]:
            spec, model_state = model.apply(
                {"params": params, **state.model_state},
                batch.features,
                batch.labels,
                ModeKeys.TRAIN,
                step=state.step,
                rng=step_rng(seed, state.step),
                mask=batch.mask,
            )
            specs.append(spec)
            loss = mean_loss(spec.loss, batch.mask)
            host_call = spec.parsed_host_call()
            outputs = Outputs(
                TrainOutputs(loss, step_values(spec.metrics, batch.mask)),
                host_call.tensors if host_call else (),
            )
            return loss, (model_state, outputs)

        grads, (model_state, outputs) = jax.grad(loss_fn, has_aux=True)(state.params)
        # The optimizer is an object of functions, not of arrays: it leaves the gradient's
        # trace as it is.
        optimizer = optax.with_extra_args_support(specs[0].optimizer)
        loss = outputs.every_step.loss
        updates, opt_state = optimizer.update(
            grads, state.opt_state, state.params, value=loss, grad=grads
        )
        new_state = TrainState(
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            model_state=model_state,
            opt_state=opt_state,
        )
        if histograms_every_n is not None:
            due = new_state.step % histograms_every_n == 0
            taken = take_if(due, {"parameters": new_state.params, "gradients": grads})
            outputs = outputs._replace(every_step=outputs.every_step._replace(histograms=taken))
        return new_state, outputs

    return step


class Frozen(NamedTuple):
    """What evaluation and prediction read and never change.

    Attributes:
      variables: the model's variables by collection.
      step: global step of the checkpoint, int32 scalar.
    """

    variables: Any
    step: Any


class EvalCarry(NamedTuple):
    """What an evaluation keeps on the device from step to step.

    Attributes:
      batch: batches so far, int32 scalar.
      merged: mergeable metrics over them.
    """

    batch: Any
    merged: dict[str, Any]


class EvalOutputs(NamedTuple):
    """What an evaluation step sends out.

    Attributes:
      rows: real examples of the batch, int32 scalar.
      loss: sum over them, float32 scalar.
      metrics: likewise for each metric with a value per example.
      tensors: the tensors of eval_metrics, or an empty tuple.
      mask: `[batch]` bool, which of their rows are real; None if all are, or there are none.
    """

    rows: Any
    loss: Any
    metrics: dict[str, Any]
    tensors: Any
    mask: Any


def eval_step(model: Model, *, seed: int) -> Step:
    """Returns the step of evaluation: its carry is an EvalCarry, its constants a Frozen,
    `every_step` of its outputs an EvalOutputs."""

    def step(carry: EvalCarry, frozen: Frozen, batch: Batches) -> tuple[EvalCarry, Outputs]:
        spec, _ = model.apply(
            frozen.variables,
            batch.features,
            batch.labels,
            ModeKeys.EVAL,
            step=frozen.step,
            rng=step_rng(seed, carry.batch),
            mask=batch.mask,
        )
        rows = jax.tree.leaves(batch.features)[0].shape[0]
        loss = spec.loss if spec.loss.ndim else jnp.full(rows, spec.loss)
        metrics = spec.metrics or {}
        eval_metrics = spec.parsed_eval_metrics()
        outputs = EvalOutputs(
            rows=jnp.int32(rows) if batch.mask is None else jnp.sum(batch.mask, dtype=jnp.int32),
            loss=masked_sum(loss, batch.mask),
            metrics={
                name: masked_sum(metric, batch.mask)
                for name, metric in metrics.items()
                if not is_mergeable(metric)
            },
            tensors=eval_metrics.tensors if eval_metrics else (),
            mask=batch.mask if eval_metrics else None,
        )
        merged = {name: metric.merge(metrics[name]) for name, metric in carry.merged.items()}
        return EvalCarry(carry.batch + 1, merged), Outputs(outputs)

    return step


def predict_step(model: Model, *, seed: int, keys: tuple[str, ...] | None) -> Step:
    """Returns the step of prediction: its carry is the number of batches so far (int32
    scalar), its constants a Frozen, `every_step` of its outputs the predictions, only those
    under `keys` if given."""

    def step(carry: jax.Array, frozen: Frozen, batch: Batches) -> tuple[jax.Array, Outputs]:
        spec, _ = model.apply(
            frozen.variables,
            batch.features,
            None,
            ModeKeys.PREDICT,
            step=frozen.step,
            rng=step_rng(seed, carry),
            mask=batch.mask,
        )
        predictions = spec.predictions
        if keys is not None:
            predictions = {key: predictions[key] for key in keys}
        return carry + 1, Outputs(predictions)

    return step


@jax.jit
def all_finite(tree: Any) -> jax.Array:
    """Returns whether every floating point number in `tree` is finite, a bool scalar."""
    return jnp.array(
        [
            jnp.isfinite(leaf).all()
            for leaf in jax.tree.leaves(tree)
            if jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
    ).all()
