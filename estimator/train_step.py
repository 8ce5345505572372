"""The step of training: a pure function of one batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from estimator import microbatches
from estimator.batches import Batches
from estimator.histograms import take_if
from estimator.metrics import is_mergeable, masked_sum
from estimator.model import Model
from estimator.replicas import Replicas, Share
from estimator.spec import EstimatorSpec, ModeKeys
from estimator.state import TrainState
from estimator.steps import Outputs, Step, real_rows, step_rng


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


class _Part(NamedTuple):
    """What comes out of model_fn for some rows of a batch.

    Attributes:
      loss: its share of the mean over the batch.
      means: likewise of each metric with a value an example.
      merging: the metrics that merge themselves.
      weight: its share of the rows of the batch.
      tensors: of host_call.
    """

    loss: Any
    means: Mapping[str, Any]
    merging: Mapping[str, Any]
    weight: Any
    tensors: microbatches.Tensors


def train_step(
    model: Model,
    replicas: Replicas,
    *,
    seed: int,
    accumulation_steps: int = 1,
    histograms_every_n: int | None = None,
) -> Step:
    """Returns the step of training: its carry is a TrainState, `every_step` of its outputs
    a TrainOutputs, `every_n` the host_call tensors (an empty tuple if there are none).

    Args:
      model: what is trained.
      replicas: which work on the batch.
      seed: of the random numbers.
      accumulation_steps: microbatches into which each replica cuts its rows.
      histograms_every_n: steps between those of which histograms are taken; None for none.
    """

    def step(state: TrainState, constants: Any, batch: Batches) -> tuple[TrainState, Outputs]:
        specs: list[EstimatorSpec] = []

        def on_share(share: Share, state: TrainState, batch: Batches) -> tuple[Any, Any]:
            gradients = ShareGradients(model, share, seed, state, batch, specs)
            return gradients.of(accumulation_steps)

        (grads, model_state, outputs, others), rows = replicas.run(on_share, state, batch)
        loss = outputs.loss
        # The optimizer is an object of functions, not of arrays: it leaves the gradient's
        # trace as it is.
        optimizer = optax.with_extra_args_support(specs[0].optimizer)
        with traced_values_named():
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
            outputs = outputs._replace(histograms=taken)
        return new_state, Outputs(outputs, microbatches.Tensors(rows, others).together())

    return step


class ShareGradients:
    """The gradients of one share of a batch, with what leaves model_fn besides.

    Args:
      model: what is trained.
      share: whose rows these are.
      seed: of the random numbers.
      state: before the step.
      batch: the rows.
      specs: what model_fn returns is appended to it, for its static side.
    """

    def __init__(
        self,
        model: Model,
        share: Share,
        seed: int,
        state: TrainState,
        batch: Batches,
        specs: list[EstimatorSpec],
    ):
        self._model = model
        self._share = share
        self._key = share.key(step_rng(seed, state.step))
        self._state = state
        self._batch = batch
        self._specs = specs
        # Of the whole batch: by it, sums over parts become parts of the mean.
        self._rows = share.total(real_rows(batch))

    def of(self, accumulation_steps: int) -> tuple[Any, Any]:
        """Returns the gradients of the mean loss over all shares, the model's other variables
        after the step, the TrainOutputs and the tensors of host_call without rows; and as the
        second of the pair those with rows.

        With `accumulation_steps` microbatches, only one is in work at a time.
        """
        share = self._share
        count = microbatches.number(jax.tree.leaves(self._batch)[0].shape[0], accumulation_steps)
        if count == 1:
            model_state, (grads, part) = self._part(self._state.model_state, self._key, self._batch)
            rows = part.tensors.rows
            parts = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], part)
        else:
            model_state, grads, parts = self._accumulated(count)
            rows = microbatches.joined(parts.tensors.rows)
        # Each sum is over what this share's parts add to it, and then over the shares.
        loss, means = jax.tree.map(lambda leaf: leaf.sum(0), (parts.loss, parts.means))
        loss, means, grads = share.total((loss, means, grads))
        merging, weight, others = parts.merging, parts.weight, parts.tensors.others
        if share.num_shares * count > 1:
            every = share.stacked((merging, weight, others))
            merging, weight, others = jax.tree.map(
                lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), every
            )
        outputs = TrainOutputs(
            loss,
            {
                **means,
                **{
                    name: jnp.asarray(microbatches.merged(metric).compute(), jnp.float32)
                    for name, metric in merging.items()
                },
            },
        )
        others = microbatches.mean_of_parts(others, weight)
        return (grads, share.mean_state(model_state), outputs, others), rows

    def _accumulated(self, count: int) -> tuple[Any, Any, _Part]:
        """Returns model state, gradients and the parts `[count, ...]` of as many microbatches."""

        def body(carry: tuple[Any, Any], inputs: tuple[Any, Batches]) -> tuple[Any, _Part]:
            model_state, total = carry
            index, batch = inputs
            key = jax.random.fold_in(self._key, index)
            model_state, (grads, part) = self._part(model_state, key, batch)
            return (model_state, jax.tree.map(jnp.add, total, grads)), part

        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)),
            self._state.params,
        )
        (model_state, grads), parts = jax.lax.scan(
            body,
            (self._state.model_state, zeros),
            (jnp.arange(count), microbatches.cut(self._batch, count)),
        )
        grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, self._state.params)
        return model_state, grads, parts

    def _part(
        self, model_state: Any, key: jax.Array, batch: Batches
    ) -> tuple[Any, tuple[Any, _Part]]:
        """Returns the model state after some rows, and their gradients and part."""
        weight = real_rows(batch) / self._rows

        def mean_share(values: jax.Array) -> jax.Array:
            if values.ndim == 0:
                return values.astype(jnp.float32) * weight
            return masked_sum(values, batch.mask) / self._rows

        def loss_fn(params: Any) -> tuple[jax.Array, tuple[Any, _Part]]:
            spec, new_state = self._model.apply(
                {"params": params, **model_state},
                batch.features,
                batch.labels,
                ModeKeys.TRAIN,
                step=self._state.step,
                rng=key,
                mask=batch.mask,
                share=self._share,
            )
            self._specs.append(spec)
            loss = mean_share(spec.loss)
            metrics = spec.metrics or {}
            host_call = spec.parsed_host_call()
            part = _Part(
                loss,
                {n: mean_share(m) for n, m in metrics.items() if not is_mergeable(m)},
                {n: m for n, m in metrics.items() if is_mergeable(m)},
                weight,
                microbatches.Tensors.of(
                    host_call.tensors if host_call else (),
                    jax.tree.leaves(batch.features)[0].shape[0],
                ),
            )
            return loss, (new_state, part)

        grads, (new_state, part) = jax.grad(self._share.dropping(loss_fn), has_aux=True)(
            self._state.params
        )
        return new_state, (grads, part)


@contextlib.contextmanager
def traced_values_named() -> Iterator[None]:
    """Says in words what is wrong where an optimizer holds on to arrays of model_fn."""
    try:
        yield
    except (jax.errors.UnexpectedTracerError, ValueError) as error:
        # An array of a replica, outside of it, is refused for its mesh before it is for its age.
        if isinstance(error, ValueError) and "Mesh for all inputs" not in str(error):
            raise
        raise TypeError(
            "The optimizer uses an array that model_fn computed, such as context.step, which lives "
            "only while model_fn runs on its part of the batch. Give the optimizer a schedule, "
            "a function of the step, such as optax.cosine_decay_schedule(...)."
        ) from error
