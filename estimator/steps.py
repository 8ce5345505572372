"""The steps of evaluate and predict: pure functions of one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from estimator.batches import Batches
from estimator.metrics import is_mergeable, masked_sum
from estimator.microbatches import merged
from estimator.model import Model
from estimator.replicas import Replicas, Share
from estimator.spec import ModeKeys


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


def real_rows(batch: Batches) -> jax.Array:
    """Returns how many rows of a batch do not only pad it, int32 scalar."""
    if batch.mask is None:
        return jnp.int32(jax.tree.leaves(batch.features)[0].shape[0])
    return jnp.sum(batch.mask, dtype=jnp.int32)


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


def eval_step(model: Model, replicas: Replicas, *, seed: int) -> Step:
    """Returns the step of evaluation: its carry is an EvalCarry, its constants a Frozen,
    `every_step` of its outputs an EvalOutputs."""

    def on_share(share: Share, common: tuple[Any, Frozen], batch: Batches) -> tuple[Any, Any]:
        index, frozen = common
        spec, _ = model.apply(
            frozen.variables,
            batch.features,
            batch.labels,
            ModeKeys.EVAL,
            step=frozen.step,
            rng=share.key(step_rng(seed, index)),
            mask=batch.mask,
            share=share,
        )
        rows = jax.tree.leaves(batch.features)[0].shape[0]
        loss = spec.loss if spec.loss.ndim else jnp.full(rows, spec.loss)
        metrics = spec.metrics or {}
        sums = {
            name: masked_sum(metric, batch.mask)
            for name, metric in metrics.items()
            if not is_mergeable(metric)
        }
        merging = {name: metric for name, metric in metrics.items() if is_mergeable(metric)}
        eval_metrics = spec.parsed_eval_metrics()
        return (
            share.total((masked_sum(loss, batch.mask), sums)),
            {name: merged(share.stacked(metric)) for name, metric in merging.items()},
        ), eval_metrics.tensors if eval_metrics else None

    def step(carry: EvalCarry, frozen: Frozen, batch: Batches) -> tuple[EvalCarry, Outputs]:
        ((loss, sums), merging), tensors = replicas.run(on_share, (carry.batch, frozen), batch)
        together = {name: metric.merge(merging[name]) for name, metric in carry.merged.items()}
        outputs = EvalOutputs(
            rows=real_rows(batch),
            loss=loss,
            metrics=sums,
            tensors=tensors,
            mask=None if tensors is None else batch.mask,
        )
        return EvalCarry(carry.batch + 1, together), Outputs(outputs)

    return step


def predict_step(
    model: Model, replicas: Replicas, *, seed: int, keys: tuple[str, ...] | None
) -> Step:
    """Returns the step of prediction: its carry is the number of batches so far (int32
    scalar), its constants a Frozen, `every_step` of its outputs the predictions, only those
    under `keys` if given."""

    def on_share(share: Share, common: tuple[Any, Frozen], batch: Batches) -> tuple[Any, Any]:
        index, frozen = common
        spec, _ = model.apply(
            frozen.variables,
            batch.features,
            None,
            ModeKeys.PREDICT,
            step=frozen.step,
            rng=share.key(step_rng(seed, index)),
            mask=batch.mask,
            share=share,
        )
        predictions = spec.predictions
        if keys is not None:
            predictions = {key: predictions[key] for key in keys}
        return (), predictions

    def step(carry: jax.Array, frozen: Frozen, batch: Batches) -> tuple[jax.Array, Outputs]:
        _, predictions = replicas.run(on_share, (carry, frozen), batch)
        return carry + 1, Outputs(predictions)

    return step
