"""From model_fn to pure functions: the only file that knows how variables are held."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from estimator import precision
from estimator.annotations import boxed
from estimator.replicas import Share
from estimator.spec import EstimatorSpec, ModeKeys
from input_pipeline import BatchAxes

MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config", "model", "context")
RESERVED_PARAMS = ("batch_size", "context")

_WHOLE = Share()

Variables = Mapping[str, Any]
"""Collection name -> pytree of arrays; `params` is what an optimizer changes."""

Call = Callable[[Any], EstimatorSpec]
"""model_fn with everything but `model` filled in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelContext:
    """What model_fn may know of the step that it is traced for; also `params["context"]`.

    Attributes:
      step: int32 scalar, the updates made before this step. The estimator counts steps; a
        model_fn can only read them.
      rng: a random key that depends on the seed and the step (in evaluate and predict on
        the seed and the batch), with replication="per_replica" on `replica_id`, and within
        gradient accumulation on the microbatch; on nothing else.
      mask: `[batch]` bool, False on rows that only pad the batch; None if all are real.
      batch_size: rows of this batch, padding included: those of the replica with
        replication="per_replica", and of the microbatch within gradient accumulation.
      num_replicas: replicas that share the global batch.
      replica_id: which of them sees these rows, int32 scalar; 0 with replication="global", where
        model_fn sees the rows of all.
      axis_name: for `jax.lax.pmean` and its kin over the replicas, and the `axis_name` of batch
        norm layers that share their statistics; None with replication="global", where all rows
        are here.
    """

    step: Any
    rng: Any
    mask: Any
    batch_size: int
    num_replicas: int
    replica_id: Any = 0
    axis_name: str | tuple[str, ...] | None = None


class VariableHolder(Protocol):
    """One way to hold a model's variables."""

    def init(self, key: jax.Array, features: Any, call: Call) -> tuple[Variables, EstimatorSpec]:
        """Makes the variables that `call` uses."""
        ...

    def apply(
        self, variables: Variables, key: jax.Array, call: Call, *, train: bool
    ) -> tuple[EstimatorSpec, Variables]:
        """Runs `call` on `variables`; also returns the collections but `params` after it."""
        ...


class _Body(nn.Module):
    """A compact module whose body is model_fn, so that layers can be made inline."""

    body: Callable[[], EstimatorSpec]

    @nn.compact
    def __call__(self) -> EstimatorSpec:
        return self.body()


class InlineLinen:
    """Variables of the linen layers that model_fn makes as it runs."""

    def init(self, key: jax.Array, features: Any, call: Call) -> tuple[Variables, EstimatorSpec]:
        spec, variables = _Body(lambda: call(None)).init_with_output(_linen_rngs(key))
        return _lasting(variables), spec

    def apply(
        self, variables: Variables, key: jax.Array, call: Call, *, train: bool
    ) -> tuple[EstimatorSpec, Variables]:
        return _Body(lambda: call(None)).apply(variables, **_linen_options(variables, key, train))


class LinenModule:
    """Variables of a linen module that is given to the Estimator."""

    def __init__(self, module: nn.Module):
        self.module = module

    def init(self, key: jax.Array, features: Any, call: Call) -> tuple[Variables, EstimatorSpec]:
        spec, variables = nn.init_with_output(call, self.module)(_linen_rngs(key))
        return _lasting(variables), spec

    def apply(
        self, variables: Variables, key: jax.Array, call: Call, *, train: bool
    ) -> tuple[EstimatorSpec, Variables]:
        options = _linen_options(variables, key, train)
        run = nn.apply(call, self.module, mutable=options["mutable"])
        return run(variables, rngs=options["rngs"])


def _linen_rngs(key: jax.Array) -> dict[str, jax.Array]:
    # Streams of other names fall back to `params`, as linen defines it.
    params, dropout = jax.random.split(key)
    return {"params": params, "dropout": dropout}


def _linen_options(variables: Variables, key: jax.Array, train: bool) -> dict[str, Any]:
    # Without random streams in evaluate and predict, a dropout that was left on is an error
    # there and not a silent change of the numbers.
    return {
        "rngs": _linen_rngs(key) if train else {},
        "mutable": [name for name in variables if name != "params"] if train else [],
    }


def _lasting(variables: Variables) -> Variables:
    passing = {"intermediates", "perturbations"}
    return {name: tree for name, tree in variables.items() if name not in passing}


@dataclasses.dataclass(frozen=True)
class Functional:
    """A model of two pure functions, for Equinox, Haiku or parameters kept by hand.

    Attributes:
      init: `init(rng, features) -> params`, a pytree of arrays.
      apply: `apply(params, *args) -> outputs`. model_fn is given `model`, and
        `model(*args)` calls `apply` with the parameters filled in.

    Raises:
      TypeError: one of them is no function, or takes other arguments.
    """

    init: Callable[..., Any]
    apply: Callable[..., Any]

    def __post_init__(self) -> None:
        _check_callable("Functional.init", self.init, "init(rng, features)", None, None)
        _check_callable("Functional.apply", self.apply, "apply(params, *args)")


def _check_callable(what: str, fn: Any, form: str, *arguments: Any, **named: Any) -> None:
    """Checks that `fn` can be called with the arguments; without any, only that it is a function.

    Raises:
      TypeError: it cannot; says that it is called as `form`.
    """
    if not callable(fn):
        raise TypeError(f"{what} must be a function, called as {form}; got {type(fn).__name__}.")
    try:
        if arguments or named:
            inspect.signature(fn).bind(*arguments, **named)
    except ValueError:
        pass  # some builtins have no signature to check
    except TypeError as error:
        raise TypeError(
            f"{what} is called as {form}, but takes other arguments: {error}. For what else it "
            "needs, write a lambda around it."
        ) from error


class FunctionalParams:
    """Variables of an `est.Functional`: its parameters."""

    def __init__(self, functional: Functional):
        self._functional = functional

    def init(self, key: jax.Array, features: Any, call: Call) -> tuple[Variables, EstimatorSpec]:
        params = self._functional.init(key, features)
        return {"params": params}, call(self._bound(params))

    def apply(
        self, variables: Variables, key: jax.Array, call: Call, *, train: bool
    ) -> tuple[EstimatorSpec, Variables]:
        return call(self._bound(variables["params"])), {}

    def _bound(self, params: Any) -> Callable[..., Any]:
        return functools.partial(self._functional.apply, params)


class NnxModule:
    """Variables of the `nnx.Module` that a function builds: split before the step, merged in it."""

    def __init__(self, build: Callable[..., Any]):
        self.build = _taking_rngs(build)

    def init(self, key: jax.Array, features: Any, call: Call) -> tuple[Variables, EstimatorSpec]:
        from flax import nnx

        module = self._built(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise TypeError(
                f"The function model= built a {type(module).__name__}; expected an nnx.Module. A "
                "linen module is passed as it is, without a function: model=nn.Dense(10)."
            )
        _, params, _, state = nnx.split(module, nnx.Param, nnx.RngState, ...)
        variables = {"params": boxed(params), "state": boxed(state)}
        module.eval()  # initialising leaves batch statistics as they were built
        spec = call(module)
        return variables, spec

    def apply(
        self, variables: Variables, key: jax.Array, call: Call, *, train: bool
    ) -> tuple[EstimatorSpec, Variables]:
        from flax import nnx

        module = nnx.eval_shape(lambda: self._built(nnx.Rngs(0)))
        graph, params, rngs, state = nnx.split(module, nnx.Param, nnx.RngState, ...)
        nnx.replace_by_pure_dict(params, variables["params"])
        nnx.replace_by_pure_dict(state, variables.get("state", {}))
        module = nnx.merge(graph, params, _fresh_rngs(rngs, key), state)
        module.train() if train else module.eval()
        spec = call(module)
        if not train:
            return spec, {}
        _, _, _, state = nnx.split(module, nnx.Param, nnx.RngState, ...)
        return spec, {"state": nnx.to_pure_dict(state)}

    def _built(self, rngs: Any) -> Any:
        from flax import nnx

        with nnx.use_eager_sharding(False):  # where variables lie is not for the module to say
            return self.build(rngs)


def _taking_rngs(build: Callable[..., Any]) -> Callable[[Any], Any]:
    """Returns `build` as a function of the random streams alone.

    Raises:
      TypeError: it does not take them, or needs more.
    """
    name = f"model={getattr(build, '__name__', build)}"
    function = _with_signature(build)
    if "rngs" in inspect.signature(function).parameters:
        _check_callable(name, function, "model(rngs=rngs)", rngs=None)
        return lambda rngs: build(rngs=rngs)
    _check_callable(name, function, "model(rngs)", None)
    return build


def _with_signature(build: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with the arguments of `build`, which the class of an nnx.Module hides."""
    if inspect.isclass(build):
        return functools.partial(build.__init__, None)
    if isinstance(build, functools.partial):
        inner = _with_signature(build.func)
        return functools.partial(inner, *build.args, **build.keywords)
    return build


def _fresh_rngs(rngs: Any, key: jax.Array) -> Any:
    """Random streams of one step: a key of its own for each stream, with its count at zero."""
    leaves, structure = jax.tree.flatten(rngs)
    fresh = []
    for index, leaf in enumerate(leaves):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            fresh.append(jax.random.fold_in(key, index))
        else:
            fresh.append(jnp.zeros(leaf.shape, leaf.dtype))
    return jax.tree.unflatten(structure, fresh)


def variable_holder(model: Any) -> VariableHolder:
    """Returns how the variables of `Estimator(model=model)` are held.

    Raises:
      TypeError: `model` is none of the kinds that are known.
    """
    if model is None:
        return InlineLinen()
    if isinstance(model, nn.Module):
        return LinenModule(model)
    if isinstance(model, Functional):
        return FunctionalParams(model)
    if inspect.isclass(model) and issubclass(model, nn.Module):
        raise TypeError(
            f"model={model.__name__} is the class of a linen module. Pass an instance of it: "
            f"model={model.__name__}(...)."
        )
    if inspect.isroutine(model) or inspect.isclass(model) or isinstance(model, functools.partial):
        return NnxModule(model)
    raise TypeError(
        f"model must be a flax.linen module, a function of `rngs` that builds an nnx.Module, or an "
        f"est.Functional(init, apply), got {type(model).__name__}."
    )


class Model:
    """model_fn as two pure functions, `init` and `apply`.

    Args:
      model_fn: called with whichever of `MODEL_FN_ARGUMENTS` it names.
      params: the user's hyperparameters; model_fn gets a copy with the reserved keys filled in.
      config: the RunConfig, for model_fn; says where that sees the batch of each tensor.
      num_replicas: for `ModelContext`.
      model: as in `Estimator(model=...)`.

    Raises:
      TypeError: model_fn has a required argument of another name, or `model` without one.
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        *,
        params: Mapping[str, Any],
        config: Any,
        num_replicas: int,
        model: Any = None,
    ):
        self._model_fn = model_fn
        offered = tuple(n for n in MODEL_FN_ARGUMENTS if n != "model" or model is not None)
        self._names = accepted_names("model_fn", model_fn, offered)
        self._params = params
        self._config = config
        self._num_replicas = num_replicas
        self._batch_axes = BatchAxes(config.input.batch_axis)
        self._holder = variable_holder(model)

    def init(
        self,
        key: jax.Array,
        features: Any,
        labels: Any,
        mode: ModeKeys,
        *,
        share: Share = _WHOLE,
    ) -> tuple[Variables, EstimatorSpec]:
        """Makes the variables that model_fn uses in `mode`, with or without boxes around them
        (see `annotations.unboxed`), and the spec that it returns."""
        restored, _ = self._batch_axes.restored((features, labels))
        call = self._call(features, labels, mode, jnp.int32(0), key, None, share)
        with self._logical_axis_rules():
            return self._holder.init(key, restored, call)

    def apply(
        self,
        variables: Variables,
        features: Any,
        labels: Any,
        mode: ModeKeys,
        *,
        step: jax.Array,
        rng: jax.Array,
        mask: jax.Array | None,
        share: Share = _WHOLE,
    ) -> tuple[EstimatorSpec, Variables]:
        """Runs model_fn on `variables`.

        Args:
          variables: as `init` made them.
          features: pytree of arrays `[batch, ...]`.
          labels: likewise, or None.
          mode: what model_fn is called for.
          step: int32 scalar, global step before this one.
          rng: random key of this step.
          mask: `[batch]` bool or None, see `ModelContext`.
          share: which rows of the global batch these are.

        Returns:
          The spec, and the collections but `params` after the call (empty if not training).
        """
        if self._config.compute_dtype is not None:
            features = precision.cast(features, self._config.compute_dtype)
        call = self._call(features, labels, mode, step, rng, mask, share)
        train = mode is ModeKeys.TRAIN
        dtype = self._config.compute_dtype
        narrow = variables if dtype is None else precision.narrowed(variables, dtype)
        with self._logical_axis_rules():
            spec, state = self._holder.apply(share.whole(narrow), rng, call, train=train)
        if dtype is None:
            return spec, state
        return precision.widened_spec(spec), precision.like(state, variables)

    def _logical_axis_rules(self) -> contextlib.AbstractContextManager[None]:
        return nn.logical_axis_rules(self._config.devices.logical_axis_rules)

    def _call(
        self,
        features: Any,
        labels: Any,
        mode: ModeKeys,
        step: Any,
        rng: Any,
        mask: Any,
        share: Share,
    ) -> Call:
        batch_size = jax.tree.leaves(features)[0].shape[0]
        context = ModelContext(
            step=step,
            rng=rng,
            mask=mask,
            batch_size=batch_size,
            num_replicas=self._num_replicas,
            replica_id=share.replica_id,
            axis_name=share.axis_name,
        )
        features, labels = self._batch_axes.restored((features, labels))
        values = {
            "features": features,
            "labels": labels,
            "mode": mode,
            "params": {**self._params, "batch_size": batch_size, "context": context},
            "config": self._config,
            "context": context,
        }

        def call(model: Any) -> EstimatorSpec:
            arguments = {name: values[name] for name in self._names if name != "model"}
            if "model" in self._names:
                arguments["model"] = model
            return _checked(self._model_fn(**arguments), mode)

        return call


def _checked(spec: Any, mode: ModeKeys) -> EstimatorSpec:
    if not isinstance(spec, EstimatorSpec):
        raise TypeError(
            f"model_fn must return an EstimatorSpec, got {type(spec).__name__}. "
            "Write return est.EstimatorSpec(mode, loss=..., ...)."
        )
    if ModeKeys(spec.mode) is not mode:
        raise ValueError(
            f"model_fn was called in mode {mode.value!r} but returned an EstimatorSpec for "
            f"{str(spec.mode)!r}. Pass on the mode that it is given."
        )
    return spec


def accepted_names(what: str, fn: Callable[..., Any], offered: tuple[str, ...]) -> tuple[str, ...]:
    """Returns which of the `offered` arguments `fn` takes by name.

    Raises:
      TypeError: `fn` is not callable, or needs an argument that is not offered.
    """
    if not callable(fn):
        raise TypeError(f"{what} must be a function, got {type(fn).__name__}.")
    names = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return offered
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            hint = "" if parameter.name != "model" else " Pass Estimator(model_fn, model=...)."
            raise TypeError(
                f"{what} needs an argument {parameter.name!r} that it is not given. It may name "
                f"any of {', '.join(offered)}, and others with a default.{hint}"
            )
    return tuple(names)
