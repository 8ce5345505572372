"""write: a whole directory or none, checked before any work is done."""

import concurrent.futures
import datetime
import json
import sys

import jax
import numpy as np
import pytest

from estimator.export import PLATFORMS, load, serving_input, write
from estimator.export import variables as variables_io

SECOND = 1_700_000_000


def written(base):
    return sorted(path.name for path in base.iterdir())


def untraced(variables, features):
    raise AssertionError("the model was traced")


def test_an_export_is_named_by_its_second(tmp_path, model):
    path = write(tmp_path, model.serve, model.variables, model.inputs, clock=lambda: SECOND + 0.9)
    assert path == tmp_path / str(SECOND)
    assert written(tmp_path) == [str(SECOND)]


def test_a_second_that_is_taken_is_followed_by_the_next_free_one(tmp_path, model):
    (tmp_path / str(SECOND)).mkdir()
    (tmp_path / str(SECOND + 1)).write_text("a file")
    path = write(tmp_path, model.serve, model.variables, model.inputs, clock=lambda: SECOND)
    assert path == tmp_path / str(SECOND + 2)


def test_exports_at_the_same_time_do_not_overwrite_each_other(tmp_path, model, rows):
    x = rows(2)

    def export(scale):
        variables = jax.tree.map(lambda v: v * scale, model.variables)
        path = write(tmp_path, model.serve, variables, model.inputs, clock=lambda: SECOND)
        return path, model.serve(variables, {"x": x})["classify"].scores

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        exports = list(pool.map(export, [0.5, 1.0, 2.0, 4.0]))
    assert written(tmp_path) == [str(SECOND + i) for i in range(4)]
    for path, scores in exports:
        np.testing.assert_allclose(load(path)["classify"]({"x": x})["scores"], scores, atol=1e-6)


def test_the_manifest_says_what_was_written(tmp_path, model):
    path = write(
        tmp_path,
        model.serve,
        model.variables,
        model.inputs,
        global_step=2000,
        clock=lambda: SECOND,
    )
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["layout_version"] == 1
    assert manifest["global_step"] == 2000
    assert datetime.datetime.fromisoformat(manifest["created"]).timestamp() == SECOND
    assert manifest["versions"]["jax"] == jax.__version__
    assert set(manifest["versions"]) == {"jax-estimator", "jax", "jaxlib"}
    assert manifest["platforms"] == ["cpu", "cuda", "tpu"]
    x = {"x": {"dtype": "float32", "shape": [None, 3]}}
    scores = {"dtype": "float32", "shape": [None, 4]}
    assert manifest["signatures"] == {
        "serving_default": {
            "method": "predict",
            "program": "programs/serving_default.bin",
            "inputs": x,
            "outputs": {"class": {"dtype": "int32", "shape": [None]}, "probs": scores},
        },
        "classify": {
            "method": "classify",
            "program": "programs/classify.bin",
            "inputs": x,
            "outputs": {"scores": scores},
        },
    }
    assert manifest["variables"] == {
        "params/dense/bias": {"dtype": "float32", "shape": [4]},
        "params/dense/kernel": {"dtype": "float32", "shape": [3, 4]},
    }


def test_programs_run_on_every_platform_by_default(tmp_path, model):
    path = write(tmp_path, model.serve, model.variables, model.inputs)
    for name in ("serving_default", "classify"):
        program = (path / "programs" / f"{name}.bin").read_bytes()
        assert jax.export.deserialize(bytearray(program)).platforms == PLATFORMS


def test_a_signature_may_have_any_name(tmp_path, model):
    def serve(variables, features):
        return {"../a b": model.serve(variables, features)["classify"]}

    path = write(tmp_path / "base", serve, model.variables, model.inputs, platforms=("cpu",))
    assert written(tmp_path) == ["base"]
    assert [file.parent for file in path.rglob("*.bin")] == [path / "programs"]
    assert list(load(path).signatures) == ["serving_default", "../a b"]


def test_assets_are_copied_below_their_names(tmp_path, model):
    (tmp_path / "vocabulary").write_text("a b c")
    (tmp_path / "tokenizer" / "deep").mkdir(parents=True)
    (tmp_path / "tokenizer" / "deep" / "rules").write_text("rules")
    path = write(
        tmp_path / "base",
        model.serve,
        model.variables,
        model.inputs,
        assets_extra={
            "text/vocabulary.txt": tmp_path / "vocabulary",
            "tokenizer": str(tmp_path / "tokenizer"),
        },
    )
    assets = load(path).assets_dir
    assert assets == path / "assets.extra"
    assert (assets / "text" / "vocabulary.txt").read_text() == "a b c"
    assert (assets / "tokenizer" / "deep" / "rules").read_text() == "rules"


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_export_that_fails_leaves_nothing(tmp_path, model, monkeypatch, error):
    def fail(directory, arrays):
        directory.mkdir()
        (directory / "half").write_text("half a file")
        raise error

    monkeypatch.setattr(variables_io, "save", fail)
    with pytest.raises(type(error)) as caught:
        write(tmp_path, model.serve, model.variables, model.inputs)
    assert caught.value is error
    assert written(tmp_path) == []


def test_a_model_that_fails_leaves_nothing(tmp_path, model):
    with pytest.raises(AssertionError, match="the model was traced"):
        write(tmp_path, untraced, model.variables, model.inputs)
    assert written(tmp_path) == []


def test_what_a_killed_export_left_disturbs_neither_the_next_nor_a_reader(tmp_path, model, rows):
    good = write(tmp_path, model.serve, model.variables, model.inputs, clock=lambda: SECOND)
    good.rename(tmp_path / ".tmp-0123456789abcdef")
    (tmp_path / ".tmp-0123456789abcdef" / "programs" / "classify.bin").unlink()
    (tmp_path / str(SECOND + 9)).mkdir()  # as a copy of an export looks when it has begun
    path = write(tmp_path, model.serve, model.variables, model.inputs, clock=lambda: SECOND)
    assert load(tmp_path).path == path == good


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"assets_extra": {"v.txt": "no/such/file"}},
            FileNotFoundError,
            r"assets_extra\['v.txt'\]: there is no file 'no/such/file'",
        ),
        ({"assets_extra": {"../v.txt": __file__}}, ValueError, "destination '../v.txt'"),
        ({"assets_extra": {"/etc/v.txt": __file__}}, ValueError, "destination '/etc/v.txt'"),
        ({"assets_extra": {"": __file__}}, ValueError, "destination ''"),
        (
            {"assets_extra": {"a": __file__, "a/b": __file__}},
            ValueError,
            "'a' and 'a/b', which overwrite each other",
        ),
        ({"platforms": "cpu"}, ValueError, "platforms='cpu'; expected a tuple"),
        ({"platforms": ()}, ValueError, r"platforms=\(\)"),
        ({"platforms": ("cpu", "gpu")}, ValueError, "A GPU is 'cuda' or 'rocm'"),
    ],
)
def test_a_wrong_argument_is_refused_before_any_work(tmp_path, model, arguments, error, message):
    with pytest.raises(error, match=message):
        write(tmp_path / "base", untraced, model.variables, model.inputs, **arguments)
    assert written(tmp_path) == []


def test_a_missing_flatbuffers_is_reported_before_any_work(tmp_path, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ImportError, match="pip install flatbuffers"):
        write(tmp_path / "base", untraced, model.variables, model.inputs)
    assert written(tmp_path) == []


def test_a_base_dir_that_cannot_be_written_is_reported_before_any_work(tmp_path, model):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(OSError, match=r"base_dir='.*file/base' cannot be written: Not a directory"):
        write(tmp_path / "file" / "base", untraced, model.variables, model.inputs)


def test_an_address_is_no_base_dir(model):
    with pytest.raises(ValueError, match="base_dir='gs://bucket/m' is an address"):
        write("gs://bucket/m", untraced, model.variables, model.inputs)


def test_only_process_0_of_a_job_writes(tmp_path, model, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(RuntimeError, match="called in process 1"):
        write(tmp_path, untraced, model.variables, model.inputs)


def test_the_batch_of_the_features_is_free_and_their_other_dimensions_are_not(tmp_path, model):
    inputs = serving_input({"x": np.zeros((1, 3), np.float32)})
    signature = load(write(tmp_path, model.serve, model.variables, inputs))["classify"]
    assert str(signature.inputs["x"]) == "float32[batch, 3]"
