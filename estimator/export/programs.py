"""From a function of variables and features to one portable program a signature."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.export

from estimator.export.outputs import ExportOutput
from estimator.export.serving_input import ServingInput
from estimator.export.tensor_spec import TensorSpec
from estimator.export.variables import HostVariables

DEFAULT_SIGNATURE = "serving_default"
_BATCH = "batch"

ServingFn = Callable[[Any, Any], Mapping[str, ExportOutput]]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A compiled-anywhere program `(variables by name, inputs by name) -> outputs by name`.

    Attributes:
      method: "predict", "classify" or "regress".
      outputs: name -> spec `[batch, ...]`.
      serialized: what `jax.export.deserialize` reads. The variables are arguments, not part.
    """

    method: str
    outputs: Mapping[str, TensorSpec]
    serialized: bytes


def lower(
    fn: ServingFn, variables: HostVariables, inputs: ServingInput, platforms: Sequence[str]
) -> dict[str, Program]:
    """Lowers every signature that `fn` returns, for all `platforms` and any batch size.

    Args:
      fn: pure `(variables, features) -> {signature name: ExportOutput}`.
      variables: what `fn` is given first; only names, shapes and dtypes matter here.
      inputs: what `fn` is fed with.
      platforms: as `jax.export` names them.

    Returns:
      Signature name -> program. One of them is called "serving_default".

    Raises:
      TypeError: `fn` returns something else.
      ValueError: an output without the batch as first dimension; a model that decides on the
        number of rows; several signatures, none of them the default.
      Exception: whatever tracing `fn` raises, with a note on what an export asks for.
    """

    def call(arrays: Mapping[str, Any], feeds: Mapping[str, Any]) -> Mapping[str, ExportOutput]:
        return fn(variables.unflatten(arrays), inputs.features(feeds))

    arrays = {
        name: jax.ShapeDtypeStruct(spec.shape, spec.dtype) for name, spec in variables.specs.items()
    }
    (batch,) = jax.export.symbolic_shape(_BATCH)
    feeds = {name: spec.with_rows(batch) for name, spec in inputs.specs.items()}
    methods = _methods(call, arrays, inputs)
    default = _default(methods)

    programs = {}
    for name, method in methods.items():

        def serve(arrays: Any, feeds: Any, name: str = name) -> dict[str, Any]:
            return _checked(call(arrays, feeds))[name].as_dict()

        with (
            _deciding_on_rows(name),
            _noting(
                f"While exporting the signature {name!r} for {', '.join(platforms)}. Its batch "
                f"dimension is the symbol {_BATCH!r}, as one program serves every batch size: the "
                "model must not decide on shape[0], nor need it as a number. Nor may it call back "
                "to Python, as jax.debug.print does."
            ),
        ):
            exported = jax.export.export(jax.jit(serve), platforms=platforms)(arrays, feeds)
        outputs = _output_specs(name, exported, batch)
        programs[name] = Program(method, outputs, bytes(exported.serialize()))
    return {DEFAULT_SIGNATURE: programs[default], **programs}


def _methods(call: ServingFn, arrays: Mapping[str, Any], inputs: ServingInput) -> dict[str, str]:
    """Finds out, by a trace, which signatures there are and how each is offered."""
    methods = {}

    def look(arrays: Any, feeds: Any) -> dict[str, dict[str, Any]]:
        with _noting(
            "While tracing the model for export, with a batch of 2 rows. An exported model takes "
            "batches of any size, whatever the size in training."
        ):
            outputs = call(arrays, feeds)
        outputs = _checked(outputs)
        methods.update({name: output.method for name, output in outputs.items()})
        return {name: output.as_dict() for name, output in outputs.items()}

    # A batch of two: whatever fails now does not fail because the batch is symbolic.
    feeds = {name: spec.with_rows(2) for name, spec in inputs.specs.items()}
    jax.eval_shape(look, arrays, feeds)
    return methods


def _checked(outputs: Any) -> dict[str, ExportOutput]:
    if not isinstance(outputs, Mapping) or not outputs:
        given = "an empty dict" if isinstance(outputs, Mapping) else type(outputs).__name__
        raise TypeError(
            f"export_outputs is {given}; expected a dict of signatures such as "
            f"{{{DEFAULT_SIGNATURE!r}: PredictOutput(predictions)}}."
        )
    for name, output in outputs.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"export_outputs has the key {name!r}; expected a signature name.")
        if not isinstance(output, ExportOutput):
            raise TypeError(
                f"export_outputs[{name!r}] is of type {type(output).__name__}; expected a "
                "PredictOutput, ClassificationOutput or RegressionOutput."
            )
    return dict(outputs)


def _default(names: Mapping[str, Any]) -> str:
    """Returns the name of the signature that is the default one."""
    if DEFAULT_SIGNATURE in names:
        return DEFAULT_SIGNATURE
    if len(names) > 1:
        raise ValueError(
            f"export_outputs has the signatures {sorted(names)}, and none is called "
            f"{DEFAULT_SIGNATURE!r}. Give the one that callers get by default that name."
        )
    return next(iter(names))


def _output_specs(name: str, exported: Any, batch: Any) -> dict[str, TensorSpec]:
    if exported.nr_devices != 1:
        raise ValueError(
            f"Signature {name!r} is tied to the {exported.nr_devices} devices of a mesh: the model "
            "closes over arrays that are spread over them, or places values there itself. An "
            "exported model runs on one device; leave such placement out in mode PREDICT."
        )
    specs = {}
    for output, aval in jax.tree.unflatten(exported.out_tree, exported.out_avals).items():
        fixed = [size for size in aval.shape[1:] if not jax.export.is_symbolic_dim(size)]
        if aval.shape[:1] != (batch,) or len(fixed) != len(aval.shape) - 1:
            raise ValueError(
                f"Output {output!r} of signature {name!r} has the shape "
                f"[{', '.join(map(str, aval.shape))}]; expected [batch, ...], a row for every "
                "example and the other dimensions fixed."
            )
        specs[output] = TensorSpec((None, *aval.shape[1:]), aval.dtype)
    return specs


@contextlib.contextmanager
def _deciding_on_rows(signature: str) -> Iterator[None]:
    """Says in words what JAX says of a dimension that is a symbol and is needed as a number."""
    try:
        yield
    except jax.errors.InconclusiveDimensionOperation as error:
        raise ValueError(
            f"Signature {signature!r} cannot be exported: model_fn decides on the number of rows "
            f"of its batch ({str(error).splitlines()[0]}), and one program serves every number. In "
            "mode PREDICT, compute from the rows alone: no `if` on shape[0], no Python loop over "
            "it, no reshape that fixes it."
        ) from error


@contextlib.contextmanager
def _noting(note: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise
