"""load: the same answers as the model itself, at every batch size, without the model's code."""

import collections
import json
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimator.export
from estimator.export import PredictOutput, RegressionOutput, load, serving_input, write
from estimator.export.loading import LoadedSignature, platform_of
from estimator.export.manifest import SignatureSpec

ROOT = Path(estimator.export.__file__).parents[2]

Layer = collections.namedtuple("Layer", ["kernel", "bias"])


@pytest.fixture
def exported(tmp_path, model):
    return write(tmp_path, model.serve, model.variables, model.inputs, global_step=5)


def edit_manifest(path, **changes):
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("n", [1, 3, 300])
def test_a_loaded_model_answers_as_the_model_does_at_every_batch_size(exported, model, rows, n):
    x = rows(n)
    answer = model.answer(x)
    outputs = load(exported)["serving_default"]({"x": x})
    assert set(outputs) == {"class", "probs"}
    assert all(isinstance(output, np.ndarray) for output in outputs.values())
    np.testing.assert_array_equal(outputs["class"], answer["class"])
    np.testing.assert_allclose(outputs["probs"], answer["probs"], atol=1e-6)
    scores = load(exported)["classify"]({"x": x})["scores"]
    np.testing.assert_allclose(scores, answer["probs"], atol=1e-6)


def test_no_rows_give_empty_outputs_of_the_right_shapes_and_dtypes(exported, rows):
    outputs = load(exported)["serving_default"]({"x": rows(0)})
    assert {name: (output.shape, output.dtype) for name, output in outputs.items()} == {
        "class": ((0,), np.int32),
        "probs": ((0, 4), np.float32),
    }


def test_no_rows_are_answered_without_running_the_program(exported, rows):
    signature = load(exported).manifest.signatures["classify"]
    assert isinstance(signature, SignatureSpec)
    idle = LoadedSignature("classify", signature, lambda feeds: pytest.fail("it ran"))
    assert idle({"x": rows(0)})["scores"].shape == (0, 4)


def test_a_batch_size_is_compiled_once(exported, rows):
    compiled = []

    def listen(event, duration_secs, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    signature = load(exported)["classify"]
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        counts = []
        for n in (5, 5, 6, 5, 6):
            signature({"x": rows(n)})
            counts.append(len(compiled))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert counts[0] > 0
    assert counts[1] == counts[0] < counts[2]
    assert counts[2] == counts[4]


def test_a_process_without_the_code_of_the_model_gets_the_same_answers(tmp_path, rows):
    layers = [Layer(jnp.arange(12.0).reshape(3, 4) / 7, jnp.ones(4)), jax.random.key(1)]

    def serve(variables, features):
        (layer, key), x = variables, features.kernel + features.bias[0]
        y = x @ layer.kernel + layer.bias + jax.random.uniform(key, (4,))
        return {"serving_default": PredictOutput({"y": y})}

    # The features and the variables are classes of this file, which the other cannot import.
    features = Layer(rows(3), [rows(3)])
    inputs = serving_input(features)
    write(tmp_path / "base", serve, layers, inputs, platforms=("cpu", "tpu"))
    arrays = {"kernel": features.kernel, "bias/0": features.bias[0]}
    np.savez(tmp_path / "features.npz", **arrays)
    program = (
        "import numpy, estimator.export as export\n"
        "features = dict(numpy.load('features.npz'))\n"
        "outputs = export.load('base')['serving_default'](features)\n"
        "numpy.savez('outputs.npz', **outputs)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    expected = serve(layers, features)["serving_default"].outputs["y"]
    with np.load(tmp_path / "outputs.npz") as outputs:
        np.testing.assert_allclose(outputs["y"], expected, atol=1e-6)


def test_inputs_of_many_dtypes_and_nested_names_reach_the_model(tmp_path):
    features = {
        "text": {"ids": np.array([[3, 1]], np.int64), "mask": np.array([[True, False]])},
        "half": [jnp.full((1, 2), 0.5, jnp.bfloat16)],
        "image": np.array([[200, 100]], np.uint8),
    }

    def preprocess(features):
        return {**features, "image": features["image"].astype(jnp.float32) / 200}

    def serve(variables, features):
        text = features["text"]
        total = jnp.where(text["mask"], text["ids"], 0) + features["half"][0] + features["image"]
        outputs = {"half": features["half"][0], "mask": ~text["mask"], "total": total}
        return {
            "serving_default": PredictOutput(outputs),
            "regress": RegressionOutput(total.sum(-1)),
        }

    inputs = serving_input(features, preprocess)
    model = load(write(tmp_path, serve, {}, inputs, platforms=("cpu",)))
    outputs = model["serving_default"](features)
    assert outputs["half"].dtype == jnp.bfloat16
    assert outputs["half"].tolist() == [[0.5, 0.5]]
    assert outputs["mask"].tolist() == [[False, True]]
    assert outputs["total"].tolist() == [[3 + 0.5 + 1, 0 + 0.5 + 0.5]]
    as_json = {
        "text/ids": [[3, 1]],
        "text/mask": [[True, False]],
        "half/0": [[0.5, 0.5]],
        "image": [[200, 100]],
    }
    assert model["regress"](as_json)["outputs"].tolist() == [5.5]


def test_a_model_of_one_unnamed_array_is_called_with_it(tmp_path, rows):
    inputs = serving_input(rows(8))
    path = write(tmp_path, lambda v, x: {"twice": PredictOutput(v * x)}, jnp.float32(2), inputs)
    x = rows(3)
    np.testing.assert_array_equal(load(path)["serving_default"](x)["output"], 2 * x)


def test_a_signature_describes_itself(exported):
    model = load(exported)
    signature = model["classify"]
    assert (signature.name, signature.method) == ("classify", "classify")
    assert str(signature.inputs["x"]) == "float32[batch, 3]"
    assert str(signature.outputs["scores"]) == "float32[batch, 4]"
    assert list(model.signatures) == ["serving_default", "classify"]
    assert (model.manifest.global_step, model.path) == (5, exported)


def test_an_unknown_signature_is_an_error_that_lists_the_known_ones(exported):
    with pytest.raises(KeyError, match=r"'predict'.*\['serving_default', 'classify'\]"):
        load(exported)["predict"]


def test_features_that_do_not_fit_are_refused_before_the_program_runs(exported, rows):
    with pytest.raises(ValueError, match=r"signature 'classify': missing \['x'\]"):
        load(exported)["classify"]({"y": rows(2)})


def test_the_newest_of_several_exports_is_loaded(tmp_path, model):
    for second in (9, 10, 8):
        path = write(tmp_path, model.serve, model.variables, model.inputs, clock=lambda s=second: s)
        assert path.name == str(second)
    assert load(tmp_path).path == tmp_path / "10"
    assert load(str(tmp_path / "8")).path == tmp_path / "8"


@pytest.mark.parametrize("name", ["", "absent"])
def test_a_path_without_an_export_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / "7").mkdir()
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path / name}' is no exported model"):
        load(tmp_path / name)


def test_the_variables_and_the_work_are_on_the_device_that_is_asked_for(tmp_path):
    device = jax.devices()[-1]

    def serve(variables, features):
        return {"sum": PredictOutput(features["x"] + variables["w"])}

    inputs = serving_input({"x": np.zeros((1, 617), np.float32)})
    path = write(tmp_path, serve, {"w": np.ones(617, np.float32)}, inputs)
    model = load(path, device=device)
    where = [array.devices() for array in jax.live_arrays() if array.shape == (617,)]
    assert where == [{device}]
    x = np.arange(617, dtype=np.float32)[None]
    np.testing.assert_array_equal(model["sum"]({"x": x})["output"], x + 1)


def test_a_model_for_other_platforms_is_refused_by_the_names_of_both(tmp_path, model):
    path = write(tmp_path, model.serve, model.variables, model.inputs, platforms=("tpu", "cuda"))
    platform = jax.export.default_export_platform()
    if platform != "cpu":
        pytest.skip("runs on what the model is for")
    with pytest.raises(ValueError, match=r"for the platforms tpu, cuda, and .* the platform cpu"):
        load(path)


@pytest.mark.parametrize(
    ("platform", "version", "expected"),
    [
        ("gpu", "PJRT C API\ncuda 12090", "cuda"),
        ("gpu", "PJRT C API\nrocm 60300", "rocm"),
        ("tpu", "PJRT C API\nTFRT TPU v5", "tpu"),
    ],
)
def test_a_gpu_is_told_by_its_maker(platform, version, expected):
    client = types.SimpleNamespace(platform_version=version)
    assert platform_of(types.SimpleNamespace(platform=platform, client=client)) == expected


def test_the_platform_of_a_device_is_the_one_that_jax_exports_for():
    assert platform_of(jax.devices()[0]) == jax.export.default_export_platform()


def test_a_newer_layout_is_refused_by_the_versions_of_both(exported):
    edit_manifest(exported, layout_version=2, versions={"jax-estimator": "9.1"})
    with pytest.raises(
        ValueError, match=r"layout version 2, written by jax-estimator 9\.1; .* 1\."
    ):
        load(exported)


def test_a_program_that_cannot_be_read_is_refused_by_the_versions_of_both(exported):
    edit_manifest(exported, versions={"jax": "99.1", "jaxlib": "99.2"})
    program = exported / "programs" / "classify.bin"
    # Stable HLO starts with "MLïR" and its version; a program that is too new fails there.
    program.write_bytes(program.read_bytes().replace(b"ML\xefR", b"ML\xef!"))
    expected = (
        rf"classify.bin cannot be read.* jax 99\.1 and jaxlib 99\.2; here are jax {jax.__version__}"
    )
    with pytest.raises(ValueError, match=expected):
        load(exported)


def test_a_program_file_that_is_cut_off_is_refused_by_name(exported):
    program = exported / "programs" / "classify.bin"
    program.write_bytes(program.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"classify.bin cannot be read"):
        load(exported)


def test_a_program_of_an_older_jax_is_loaded(exported, model, rows):
    edit_manifest(exported, versions={"jax": "0.0.1", "jaxlib": "0.0.1"})
    x = rows(2)
    scores = load(exported)["classify"]({"x": x})["scores"]
    np.testing.assert_allclose(scores, model.answer(x)["probs"], atol=1e-6)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"layout_version": 1, "versions": {}}'])
def test_a_damaged_manifest_is_refused_by_name(exported, text):
    (exported / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        load(exported)


def test_a_64_bit_model_is_loaded_only_where_64_bits_are_on(tmp_path):
    def serve(variables, features):
        return {"third": PredictOutput(features["x"] / variables["three"])}

    with jax.enable_x64(True):
        inputs = serving_input({"x": np.zeros(1)})
        path = write(tmp_path, serve, {"three": np.float64(3)}, inputs, platforms=("cpu",))
        assert load(path)["third"]({"x": np.ones(1)})["output"] == np.float64(1) / 3
    with pytest.raises(ValueError, match=r'is float64.*"jax_enable_x64", True'):
        load(path)
