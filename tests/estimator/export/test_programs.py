"""Programs: one for each signature, for several platforms, any batch size, without variables."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from estimator.export import PredictOutput, TensorSpec, serving_input
from estimator.export.programs import lower
from estimator.export.variables import HostVariables

INPUTS = serving_input({"x": np.zeros((8, 3), np.float32)})
NO_VARIABLES = HostVariables.fetch({})


def lower_for_cpu(fn, variables=NO_VARIABLES):
    return lower(fn, variables, INPUTS, ("cpu",))


def test_every_signature_gets_a_program_with_its_method_and_outputs(model):
    programs = lower_for_cpu(model.serve, HostVariables.fetch(model.variables))
    assert list(programs) == ["serving_default", "classify"]
    assert programs["serving_default"].method == "predict"
    assert programs["serving_default"].outputs == {
        "class": TensorSpec((None,), "int32"),
        "probs": TensorSpec((None, 4), "float32"),
    }
    assert programs["classify"].method == "classify"
    assert programs["classify"].outputs == {"scores": TensorSpec((None, 4), "float32")}


def test_a_program_holds_the_code_of_all_platforms_it_is_lowered_for():
    def serve(variables, features):
        x = features["x"]
        return {"sine": PredictOutput(jax.lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.tan))}

    programs = lower(serve, NO_VARIABLES, INPUTS, ("cpu", "tpu"))
    exported = jax.export.deserialize(bytearray(programs["sine"].serialized))
    assert exported.platforms == ("cpu", "tpu")
    assert "sine" in exported.mlir_module() and "tan" in exported.mlir_module()


def test_a_program_does_not_grow_with_the_variables():
    def size(width):
        variables = HostVariables.fetch({"w": jnp.ones((3, width))})
        programs = lower_for_cpu(
            lambda v, f: {"serving_default": PredictOutput(f["x"] @ v["w"])}, variables
        )
        return len(programs["serving_default"].serialized)

    assert size(100_000) < size(10) + 100


def test_the_only_signature_is_also_the_default_one():
    programs = lower_for_cpu(lambda v, f: {"mine": PredictOutput(f["x"])})
    assert list(programs) == ["serving_default", "mine"]
    assert programs["serving_default"] is programs["mine"]


def test_several_signatures_without_a_default_are_refused_by_name():
    with pytest.raises(ValueError, match=r"signatures \['a', 'b'\], and none is called 'serving"):
        lower_for_cpu(lambda v, f: {"b": PredictOutput(f["x"]), "a": PredictOutput(f["x"])})


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (None, "export_outputs is NoneType; expected a dict of signatures"),
        ({}, "export_outputs is an empty dict"),
        ({"a": np.ones(2)}, r"export_outputs\['a'\] is of type ndarray; expected a PredictOutput"),
        ({3: PredictOutput(np.ones(2))}, "export_outputs has the key 3"),
    ],
)
def test_what_is_no_dict_of_export_outputs_is_refused(outputs, message):
    with pytest.raises(TypeError, match=message) as caught:
        lower_for_cpu(lambda v, f: outputs)
    assert "batch" not in "".join(getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize(
    ("output", "shape"),
    [
        (lambda x: x.T, "3, batch"),
        (lambda x: x.sum(0), "3"),
        (lambda x: x @ x.T, "batch, batch"),
        (lambda x: jnp.concatenate([x, x]), r"2\*batch, 3"),
    ],
)
def test_an_output_without_one_row_for_every_example_is_refused(output, shape):
    with pytest.raises(ValueError, match=rf"Output 'y' of signature 'a' has the shape \[{shape}\]"):
        lower_for_cpu(lambda v, f: {"a": PredictOutput({"y": output(f["x"])})})


@pytest.mark.parametrize(
    ("deciding", "words"),
    [
        (lambda x: x if x.shape[0] >= 8 else 2 * x, "'batch' >= '8' is inconclusive"),
        (lambda x: x * jnp.arange(int(x.shape[0]))[:, None], "requires a constant"),
        (lambda x: x.reshape(2, -1).reshape(x.shape), "Cannot divide evenly"),
    ],
)
def test_a_model_that_decides_on_the_number_of_rows_is_told_so(deciding, words):
    with pytest.raises(ValueError, match=f"'a' cannot be exported.*rows.*{words}.*no `if`") as got:
        lower_for_cpu(lambda v, f: {"a": PredictOutput(deciding(f["x"]))})
    assert isinstance(got.value.__cause__, jax.errors.InconclusiveDimensionOperation)


def test_a_model_that_takes_one_batch_size_gets_the_error_of_jax_with_a_note():
    with pytest.raises(TypeError, match="cannot reshape") as caught:
        lower_for_cpu(lambda v, f: {"a": PredictOutput(f["x"].reshape(8, 3))})
    assert "takes batches of any size" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    "call_back",
    [
        lambda x: jax.debug.print("{}", x),
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    ],
)
def test_a_model_that_calls_back_to_python_is_refused_with_a_note(call_back):
    def serve(variables, features):
        called_back = call_back(features["x"])
        return {"talkative": PredictOutput(features["x"] if called_back is None else called_back)}

    # The error is JAX's, and not the same for all of them.
    with pytest.raises(Exception) as caught:
        lower_for_cpu(serve)
    notes = "".join(caught.value.__notes__)
    assert "the signature 'talkative'" in notes
    assert "Nor may it call back to Python, as jax.debug.print does" in notes


@pytest.mark.skipif(jax.device_count() < 2, reason="needs several devices")
def test_a_model_tied_to_a_mesh_is_refused():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "data"))

    def serve(variables, features):
        wide = jnp.tile(features["x"], (1, jax.device_count()))
        return {"a": PredictOutput(jax.lax.with_sharding_constraint(wide, sharding))}

    with pytest.raises(ValueError, match=f"'a' is tied to the {jax.device_count()} devices"):
        lower_for_cpu(serve)
