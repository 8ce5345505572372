"""export_saved_model: what is served equals what predict gives, for any number of rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import estimator as est

X = np.random.default_rng(11).normal(size=(300, 3)).astype(np.float32)


def model_fn(features, labels, mode, params):
    hidden = nn.tanh(nn.Dense(5)(features["x"]))
    logits = nn.Dense(4)(hidden)
    if mode == est.ModeKeys.PREDICT:
        predictions = {"probs": nn.softmax(logits), "class": logits.argmax(-1)}
        outputs = {
            None: None,
            "several": {
                "serving_default": est.export.PredictOutput(predictions),
                "scores": est.export.ClassificationOutput(predictions["probs"]),
                "first": est.export.RegressionOutput(logits[:, 0]),
            },
            "one": {"scores": est.export.ClassificationOutput(predictions["probs"])},
            "no default": {
                "a": est.export.PredictOutput(predictions),
                "b": est.export.PredictOutput(predictions),
            },
            "not outputs": {"serving_default": predictions},
            "empty": {},
        }[params.get("signatures")]
        return est.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.5))


def estimator(model_dir, signatures=None, batch_size=8, devices=1):
    return est.Estimator(
        model_fn,
        model_dir=model_dir,
        params={"signatures": signatures},
        train_batch_size=8,
        predict_batch_size=batch_size,
        config=est.RunConfig(
            devices=est.DeviceConfig(devices=jax.devices()[:devices]),
            save_checkpoints_steps=2,
            save_summary_steps=None,
            log_step_count_steps=None,
        ),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with checkpoints of the model at 2 and 3."""
    model_dir = tmp_path_factory.mktemp("trained")
    labels = (X[:, 0] > 0).astype(np.int32)
    estimator(model_dir).train(lambda: ({"x": X}, labels), max_steps=3)
    return model_dir


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    base = tmp_path_factory.mktemp("export")
    return estimator(trained).export_saved_model(base, inputs())


def inputs():
    return est.export.serving_input({"x": X[:8]})


def predicted(runner, rows, **options):
    results = list(runner.predict(lambda: {"x": X[:rows]}, **options))
    return {key: np.stack([result[key] for result in results]) for key in ("probs", "class")}


@pytest.mark.parametrize("rows", [1, 3, 300])
def test_any_number_of_rows_gives_what_predict_gives(trained, exported, rows):
    served = est.export.load(exported)["serving_default"]({"x": X[:rows]})
    wanted = predicted(estimator(trained), rows)

    assert set(served) == {"probs", "class"}
    np.testing.assert_allclose(served["probs"], wanted["probs"], atol=1e-6, rtol=0)
    np.testing.assert_array_equal(served["class"], wanted["class"])


def test_no_rows_give_no_rows(exported):
    served = est.export.load(exported)["serving_default"]({"x": X[:0]})

    assert {name: array.shape for name, array in served.items()} == {
        "probs": (0, 4),
        "class": (0,),
    }


def test_a_model_that_runs_on_many_devices_is_exported_for_one(trained, tmp_path):
    path = estimator(trained, devices=8).export_saved_model(tmp_path, inputs())

    served = est.export.load(path)["serving_default"]({"x": X[:3]})
    np.testing.assert_allclose(
        served["probs"], predicted(estimator(trained), 3)["probs"], atol=1e-6, rtol=0
    )


def test_several_signatures_are_served_by_name(trained, tmp_path):
    path = estimator(trained, "several").export_saved_model(tmp_path, inputs())
    model = est.export.load(path)
    wanted = predicted(estimator(trained), 5)["probs"]

    assert set(model.signatures) == {"serving_default", "scores", "first"}
    for name, output in [("serving_default", "probs"), ("scores", "scores")]:
        np.testing.assert_allclose(model[name]({"x": X[:5]})[output], wanted, atol=1e-6, rtol=0)
    first = model["first"]({"x": X[:5]})["outputs"]
    assert first.shape == (5,)
    kernels = [estimator(trained).get_variable_value(f"params/Dense_{i}/kernel") for i in (0, 1)]
    biases = [estimator(trained).get_variable_value(f"params/Dense_{i}/bias") for i in (0, 1)]
    logits = np.tanh(X[:5] @ kernels[0] + biases[0]) @ kernels[1] + biases[1]
    np.testing.assert_allclose(first, logits[:, 0], atol=1e-5)


def test_a_single_signature_is_also_the_default(trained, tmp_path):
    model = est.export.load(estimator(trained, "one").export_saved_model(tmp_path, inputs()))

    assert set(model.signatures) == {"serving_default", "scores"}


def test_the_newest_checkpoint_is_exported_unless_another_is_given(trained, exported, tmp_path):
    runner = estimator(trained)
    older = trained / "checkpoints" / "2"

    path = runner.export_saved_model(tmp_path, inputs(), checkpoint_path=older)

    served = est.export.load(path)["serving_default"]({"x": X[:9]})["probs"]
    wanted = predicted(runner, 9, checkpoint_path=older)["probs"]
    np.testing.assert_allclose(served, wanted, atol=1e-6, rtol=0)
    assert not np.allclose(served, predicted(runner, 9)["probs"], atol=1e-4)
    assert est.export.load(path).manifest.global_step == 2
    assert est.export.load(exported).manifest.global_step == 3


def test_assets_travel_with_the_model(trained, tmp_path):
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("a\nb\n")

    path = estimator(trained).export_saved_model(
        tmp_path / "export", inputs(), assets_extra={"vocab/words.txt": vocabulary}
    )

    assert (Path(path) / "assets.extra" / "vocab" / "words.txt").read_text() == "a\nb\n"


def test_an_export_is_a_folder_named_by_a_number_and_nothing_else(trained, tmp_path):
    runner = estimator(trained)

    paths = [Path(runner.export_saved_model(tmp_path, inputs())) for _ in range(2)]

    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert len(set(paths)) == 2
    assert all(path.name.isdecimal() for path in paths)
    assert int(paths[0].name) < int(paths[1].name)


def test_preprocessing_is_part_of_what_is_served(trained, tmp_path):
    serving = est.export.serving_input(
        {"raw": X[:1]}, preprocess=lambda features: {"x": features["raw"] / 10}
    )

    path = estimator(trained).export_saved_model(tmp_path, serving)

    served = est.export.load(path)["serving_default"]({"raw": X[:6] * 10})["probs"]
    np.testing.assert_allclose(served, predicted(estimator(trained), 6)["probs"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "signatures, error, words",
    [
        ("no default", ValueError, r"\['a', 'b'\].*serving_default"),
        ("not outputs", TypeError, r"export_outputs\['serving_default'\].*PredictOutput"),
        ("empty", TypeError, "export_outputs is an empty dict"),
    ],
)
def test_export_outputs_that_cannot_be_served_are_refused(
    trained, tmp_path, signatures, error, words
):
    with pytest.raises(error, match=words):
        estimator(trained, signatures).export_saved_model(tmp_path / "export", inputs())

    assert list(tmp_path.glob("export/*")) == []


def test_without_a_checkpoint_there_is_nothing_to_export(tmp_path):
    with pytest.raises(FileNotFoundError, match="Call train first"):
        estimator(tmp_path).export_saved_model(tmp_path / "export", inputs())

    assert not (tmp_path / "export").exists()


def test_a_checkpoint_that_is_not_there_is_not_exported(trained, tmp_path):
    with pytest.raises(FileNotFoundError, match="nope"):
        estimator(trained).export_saved_model(tmp_path / "export", inputs(), checkpoint_path="nope")


def test_predictions_of_any_structure_are_served_by_the_path_to_them(tmp_path):
    def model_fn(features, labels, mode):
        y = nn.Dense(1)(features["x"])[:, 0]
        if mode == est.ModeKeys.PREDICT:
            return est.EstimatorSpec(mode, predictions={"line": {"y": y}, "all": (y, -y)})
        return est.EstimatorSpec(mode, loss=y**2, optimizer=optax.sgd(0.1))

    model = est.Estimator(model_fn, tmp_path, train_batch_size=8, predict_batch_size=8)
    model.train(lambda: {"x": X}, steps=1)

    served = est.export.load(model.export_saved_model(tmp_path / "export", inputs()))

    predicted = [row["line"]["y"] for row in model.predict(lambda: {"x": X})]
    got = served["serving_default"]({"x": X})
    assert got.keys() == {"line/y", "all/0", "all/1"}
    np.testing.assert_allclose(got["line/y"], predicted, rtol=1e-6)
    np.testing.assert_allclose(got["all/1"], -np.array(predicted), rtol=1e-6)


def test_what_the_model_is_fed_with_must_be_a_serving_input(trained, tmp_path):
    with pytest.raises(TypeError, match=r"serving_input\(features\), got dict"):
        estimator(trained).export_saved_model(tmp_path, {"x": X})  # type: ignore[arg-type]


def test_features_of_another_shape_than_the_model_was_trained_with_are_refused(trained, tmp_path):
    narrow = est.export.serving_input({"x": X[:1, :2]})

    with pytest.raises(ValueError, match=r"Dense_0/kernel: \[3, 5\] .*\[2, 5\]"):
        estimator(trained).export_saved_model(tmp_path / "export", narrow)

    assert list(tmp_path.glob("export/*")) == []


def test_an_error_of_model_fn_reaches_the_caller_as_itself(trained, tmp_path):
    wrong_name = est.export.serving_input({"image": X[:1]})

    with pytest.raises(KeyError, match="x"):
        estimator(trained).export_saved_model(tmp_path / "export", wrong_name)


def test_the_manifest_says_what_is_served(exported):
    (manifest,) = Path(exported).glob("*.json")
    said = json.dumps(json.loads(manifest.read_text()))

    for word in ("serving_default", "probs", "class", "float32", "int32", "cpu", "cuda", "tpu"):
        assert word in said


def test_a_missing_flatbuffers_is_said_before_anything_else(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    inputs = est.export.serving_input({"x": X[:1]})
    with pytest.raises(ImportError, match="pip install flatbuffers"):
        estimator(tmp_path).export_saved_model(tmp_path / "exports", inputs)
