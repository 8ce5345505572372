"""The compiled programs of one Estimator, made once and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from estimator.annotations import unboxed
from estimator.config import RunConfig
from estimator.gathering import Gathering
from estimator.loop_program import LoopProgram
from estimator.mesh import Placement
from estimator.model import Model
from estimator.outline import Outline
from estimator.replicas import Replicas, Share
from estimator.runtime import Session
from estimator.sharding import placed, state_shardings, variable_shardings
from estimator.spec import EstimatorSpec, ModeKeys
from estimator.state import TrainState
from estimator.steps import Batches, Step, eval_step, predict_step
from estimator.tensor_report import TensorReport
from estimator.tensor_trace import trace_step
from estimator.train_step import traced_values_named, train_step

BatchSpec = tuple[Any, Any]
"""(features, labels) with a `jax.ShapeDtypeStruct` `[batch, ...]` for each array."""


class Initializer:
    """Variables as model_fn makes them for batches of one kind, and what it promises.

    How the model says that they are split is added to `annotated`, by name.

    Attributes:
      abstract: what `__call__` returns, as `jax.ShapeDtypeStruct`s with shardings. A
        TrainState in train mode, variables by collection in the others.
      outline: the static side of the spec.
    """

    def __init__(
        self,
        session: Session,
        model: Model,
        placement: Placement,
        replicas: Replicas,
        annotated: dict[str, PartitionSpec],
        mode: ModeKeys,
        spec: BatchSpec,
    ):
        outlines: list[Outline] = []
        specs: list[EstimatorSpec] = []

        def on_share(share: Share, key: jax.Array, batch: Any) -> tuple[Any, tuple[()]]:
            features, labels = batch
            boxes, made = model.init(key, features, labels, mode, share=share)
            variables, found = unboxed(boxes, placement.config.logical_axis_rules)
            annotated.update(found)
            specs.append(made)
            rows = jax.tree.leaves(features)[0].shape[0]
            keeps_state = bool(jax.tree.leaves({**variables, "params": None}))
            outlines.append(
                Outline.of(made, mode, rows, keeps_state=keeps_state, shares=share.num_shares)
            )
            return share.first(variables), ()

        def init(key: jax.Array) -> Any:
            batch = jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), spec)
            variables, _ = replicas.run(on_share, key, batch)
            return _first_state(variables, specs[0]) if mode is ModeKeys.TRAIN else dict(variables)

        jitted = jax.jit(init, inline=True)  # traced once; the shardings follow from the shapes
        shapes = jitted.trace(jax.random.key(0)).out_info
        shardings_of = state_shardings if mode is ModeKeys.TRAIN else variable_shardings
        shardings = shardings_of(placement, shapes, annotated)
        # Compiled when it first runs.
        self._init = session.program(jax.jit(jitted, out_shardings=shardings))
        self._optimizer = specs[0].optimizer
        self.outline = outlines[0]
        self.abstract = placed(shapes, shardings)

    def __call__(self, seed: int) -> Any:
        """Returns freshly initialised variables; the same for the same seed on any devices."""
        return self._init(jax.random.key(seed))

    def optimizer_state(self, params: Any) -> Any:
        """Returns the state in which the optimizer begins with `params` that were not made here."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract.opt_state)
        return jax.jit(self._optimizer.init, out_shardings=shardings)(params)


def _first_state(variables: Any, spec: EstimatorSpec) -> TrainState:
    model_state = dict(variables)
    params = model_state.pop("params", {})
    if not jax.tree.leaves(params):
        raise ValueError(
            "model_fn made no parameters, so there is nothing to train. Make layers in it, such "
            "as flax.linen.Dense(10)(x), or pass Estimator(model_fn, model=...)."
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        kind = getattr(leaf, "dtype", type(leaf))
        if kind is not float and not jax.numpy.issubdtype(kind, jax.numpy.inexact):
            raise TypeError(
                f"The parameter {jax.tree_util.keystr(path, simple=True, separator='/')} is "
                f"{leaf!r} ({kind}), which has no gradient. Keep what is not trained out of the "
                "parameters: as a constant of the model, or in another collection of variables."
            )
    with traced_values_named():
        opt_state = spec.optimizer.init(params)
    return TrainState(
        step=jax.numpy.int32(0), params=params, model_state=model_state, opt_state=opt_state
    )


class Programs:
    """Makes the loops of one Estimator, each once."""

    def __init__(self, model: Model, placement: Placement, config: RunConfig):
        self._model = model
        self._placement = placement
        self._annotated: dict[str, PartitionSpec] = {}  # known once a mode has its initializer
        self._replicas = Replicas(placement, Gathering(placement, self._annotated))
        self._config = config
        self._session = Session()
        self._loops: dict[Any, LoopProgram] = {}
        self._initializers: dict[Any, Initializer] = {}
        self._capacities: dict[Any, int] = {}

    def compiling(self) -> bool:
        """Says whether one of them is being compiled now."""
        return self._session.compiling

    def initializer(self, mode: ModeKeys, spec: BatchSpec) -> Initializer:
        """Returns the initializer of `mode` for batches of this kind.

        Raises:
          Whatever model_fn raises, and errors about what it returns (see `Outline.of`).
        """
        key = (mode, _hashable(spec))
        if key not in self._initializers:
            self._initializers[key] = Initializer(
                self._session,
                self._model,
                self._placement,
                self._replicas,
                self._annotated,
                mode,
                spec,
            )
        return self._initializers[key]

    def capacity(
        self, mode: ModeKeys, spec: BatchSpec, outline: Outline, wanted: int, *, step_bytes: int
    ) -> int:
        """Returns how many batches, of `step_bytes` each, to stack for one dispatch.

        At most `wanted`, less if they or what they give do not fit `infeed_buffer_bytes`; at
        least what an earlier call was given, so that a shorter run does not compile a program
        of its own. Training stacks two at least: XLA would simplify a stack of one, and the
        last bits of the numbers would depend on `iterations_per_loop`.
        """
        budget = self._config.infeed_buffer_bytes // max(step_bytes, outline.output_bytes, 1)
        least = 2 if mode is ModeKeys.TRAIN else 1
        key = (mode, _hashable(spec), step_bytes)
        known = self._capacities.get(key, least)
        self._capacities[key] = max(known, min(wanted, budget))
        return self._capacities[key]

    def train(self) -> LoopProgram:
        """Returns the training loop; see `train_step.train_step`."""
        return self._loop(
            ModeKeys.TRAIN,
            lambda: train_step(
                self._model,
                self._replicas,
                seed=self._config.seed,
                accumulation_steps=self._config.gradient_accumulation_steps,
                histograms_every_n=self._config.save_histograms_steps,
            ),
            every_n=self._config.host_call_every_n_steps,
            gathers=self._placement.num_processes > 1,
        )

    def trace(self, state: TrainState, batch: Batches) -> TensorReport:
        """Runs one training step on `state`, which stays as it is; see `trace_step`."""
        with self._placement.tracing():
            return trace_step(self._model, state, batch, seed=self._config.seed)

    def evaluate(self) -> LoopProgram:
        """Returns the evaluation loop; see `steps.eval_step`."""
        return self._loop(
            ModeKeys.EVAL,
            lambda: eval_step(self._model, self._replicas, seed=self._config.seed),
            gathers=self._placement.num_processes > 1,
        )

    def predict(self, keys: tuple[str, ...] | None, *, gathers: bool) -> LoopProgram:
        """Returns the prediction loop for `keys` of the predictions (None: all), which leave
        whole on every device or split over them; see `steps.predict_step`."""
        return self._loop(
            (ModeKeys.PREDICT, keys, gathers),
            lambda: predict_step(self._model, self._replicas, seed=self._config.seed, keys=keys),
            gathers=gathers,
        )

    def _loop(
        self, key: Any, make_step: Callable[[], Step], *, gathers: bool, every_n: int = 1
    ) -> LoopProgram:
        if key not in self._loops:
            self._loops[key] = LoopProgram(
                self._session,
                make_step(),
                self._placement,
                every_n=every_n,
                gathers=gathers,
                shape=self._config.fixed_loop_shape(),
            )
        return self._loops[key]


def _hashable(spec: BatchSpec) -> Any:
    leaves, structure = jax.tree.flatten(spec)
    return structure, tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)
