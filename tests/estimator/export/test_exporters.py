"""Which checkpoints the exporters export, what they keep, and what a restart finds."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

import estimator as est
from estimator.export import BestExporter, Exporter, FinalExporter, LatestExporter, Manifest
from tests.counting import counting, endless, once

SERVING_INPUT = est.export.serving_input(once())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    trained = counting(tmp_path_factory.mktemp("trained"))
    return trained.train(endless, max_steps=50)


class Elsewhere:
    """An Estimator whose exports go to a folder of the test."""

    def __init__(self, model, folder):
        self.model_dir = str(folder)
        self.export_saved_model = model.export_saved_model


@pytest.fixture
def offer(model, tmp_path):
    """Returns a function that offers an exporter the evaluation of a step."""
    estimator = Elsewhere(model, tmp_path)

    def offer(exporter, step, loss=0.0, call="export", **values):
        checkpoint = Path(model.model_dir) / "checkpoints" / str(step)
        metrics = {"loss": loss, "global_step": step, **values}
        return getattr(exporter, call)(estimator, str(checkpoint), metrics)

    return offer


def steps(tmp_path, name):
    folder = tmp_path / "export" / name
    return [Manifest.read(path).global_step for path in sorted(folder.iterdir())]


def test_the_latest_are_exported_and_the_newest_are_kept(offer, tmp_path):
    exporter = LatestExporter(SERVING_INPUT, exports_to_keep=2)

    paths = [offer(exporter, step) for step in (10, 20, 30)]

    assert steps(tmp_path, "latest") == [20, 30]
    loaded = est.export.load(paths[-1])
    assert loaded["serving_default"](once())["weight"].tolist() == [30.0] * 8


def test_an_export_has_the_numbers_of_its_evaluation_beside_it(offer):
    path = offer(LatestExporter(SERVING_INPUT), 10, 0.5, accuracy=0.75)

    numbers = json.loads((Path(path) / "assets.extra" / "metrics.json").read_text())
    assert numbers == {"loss": 0.5, "global_step": 10, "accuracy": 0.75}


@pytest.mark.parametrize("exporter", [LatestExporter, BestExporter, FinalExporter])
def test_a_missing_flatbuffers_is_said_before_the_training(exporter, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ImportError, match="pip install flatbuffers"):
        exporter(SERVING_INPUT)


def test_assets_go_into_every_export(offer, tmp_path):
    (tmp_path / "words.txt").write_text("one two")
    exporter = LatestExporter(SERVING_INPUT, assets_extra={"words.txt": tmp_path / "words.txt"})

    path = offer(exporter, 10)

    assert (Path(path) / "assets.extra" / "words.txt").read_text() == "one two"


def test_a_checkpoint_that_is_offered_again_is_not_exported_again(offer, tmp_path):
    first = offer(LatestExporter(SERVING_INPUT), 10)

    assert offer(LatestExporter(SERVING_INPUT), 10) == first
    assert steps(tmp_path, "latest") == [10]


def test_the_final_export_is_made_at_the_end_alone(offer, tmp_path):
    exporter = FinalExporter(SERVING_INPUT)

    assert offer(exporter, 10) is None
    assert offer(exporter, 20) is None
    offer(exporter, 20, call="finish")

    assert steps(tmp_path, "final") == [20]


@pytest.mark.parametrize(
    ("mode", "losses", "expected"),
    [
        ("min", [1.0, 0.5, 0.5, 0.7, 0.4], [10, 20, 50]),
        ("max", [1.0, 0.5, 1.0, 1.5, 0.4], [10, 40]),
        ("min", [math.nan, 2.0, math.nan, 3.0, 1.0], [20, 50]),
        ("min", [math.nan, math.inf, 1.0, 1.0, -math.inf], [20, 30, 50]),
    ],
)
def test_the_best_is_exported_whenever_it_is_beaten(offer, tmp_path, mode, losses, expected):
    exporter = BestExporter(SERVING_INPUT, mode=mode)

    made = {10 * n: offer(exporter, 10 * n, loss) for n, loss in enumerate(losses, start=1)}

    assert steps(tmp_path, "best") == expected
    assert [step for step, path in made.items() if path is not None] == expected


def test_the_best_outlives_the_process(offer, tmp_path):
    offer(BestExporter(SERVING_INPUT, metric="accuracy", mode="max"), 10, accuracy=0.9)
    again = BestExporter(SERVING_INPUT, metric="accuracy", mode="max")

    assert offer(again, 20, accuracy=0.8) is None
    assert offer(again, 30, accuracy=0.95) is not None
    assert steps(tmp_path, "best") == [10, 30]


def test_the_end_names_the_best_export(offer):
    exporter = BestExporter(SERVING_INPUT)
    best = offer(exporter, 10, 1.0)
    offer(exporter, 20, 2.0)

    assert offer(exporter, 20, 2.0, call="finish") == best


def test_a_comparison_of_the_users_own_decides(offer, tmp_path):
    def smaller_gap(best, current):
        return abs(current["a"] - current["b"]) < abs(best["a"] - best["b"])

    exporter = BestExporter(SERVING_INPUT, compare_fn=smaller_gap)

    for step, b in ((10, 5.0), (20, 6.0), (30, 2.0)):
        offer(exporter, step, a=1.0, b=b)

    assert steps(tmp_path, "best") == [10, 30]


def test_a_metric_that_is_not_measured_is_told_with_those_that_are(offer):
    with pytest.raises(ValueError, match=r"metric='f1'.*\['accuracy', 'global_step', 'loss'\]"):
        offer(BestExporter(SERVING_INPUT, metric="f1", mode="max"), 10, accuracy=1.0)


def test_exports_of_another_origin_are_not_judged(offer):
    path = offer(LatestExporter(SERVING_INPUT, name="best"), 10)
    (Path(path) / "assets.extra" / "metrics.json").unlink()

    with pytest.raises(FileNotFoundError, match="not made by a BestExporter"):
        offer(BestExporter(SERVING_INPUT), 20)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LatestExporter(once()), TypeError, "serving_input must come from"),
        (lambda: LatestExporter(SERVING_INPUT, name="a/b"), ValueError, "name of a folder"),
        (lambda: LatestExporter(SERVING_INPUT, exports_to_keep=0), ValueError, "positive int"),
        (lambda: BestExporter(SERVING_INPUT, mode="up"), ValueError, "mode='up' is not known"),
        (lambda: BestExporter(SERVING_INPUT, compare_fn=1), TypeError, "compare_fn must be a"),
    ],
)
def test_mistakes_are_told_when_they_are_made(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_exports_come_of_training_and_evaluating_by_turns(tmp_path):
    class Notes(Exporter):
        def __init__(self):
            super().__init__(SERVING_INPUT, name="notes")
            self.heard = []

        def export(self, estimator, checkpoint_path, metrics):
            self.heard.append((Path(checkpoint_path).name, metrics["score"]))

    notes = Notes()
    model = counting(tmp_path, params={"scores": [0.0, 1.0, 3.0, 2.0, 2.5, 1.5]})

    metrics, exports = est.train_and_evaluate(
        model,
        est.TrainSpec(endless, max_steps=50),
        est.EvalSpec(
            once,
            exporters=[
                BestExporter(SERVING_INPUT, metric="score", mode="max"),
                FinalExporter(SERVING_INPUT),
                notes,
            ],
        ),
    )

    assert metrics["score"] == 1.5
    assert notes.heard == [("10", 1.0), ("20", 3.0), ("30", 2.0), ("40", 2.5), ("50", 1.5)]
    assert exports.keys() == {"best", "final"}
    assert steps(tmp_path, "best") == [10, 20]
    assert Manifest.read(Path(exports["best"])).global_step == 20
    assert Manifest.read(Path(exports["final"])).global_step == 50


@pytest.mark.parametrize(("throttle_secs", "kept"), [(600, [10, 50]), (0, [10, 20, 30, 40, 50])])
def test_a_throttle_keeps_no_last_checkpoint_from_its_export(tmp_path, throttle_secs, kept):
    exporters = [LatestExporter(SERVING_INPUT), FinalExporter(SERVING_INPUT)]

    _, exports = est.train_and_evaluate(
        counting(tmp_path),
        est.TrainSpec(endless, max_steps=50),
        est.EvalSpec(once, exporters=exporters, throttle_secs=throttle_secs),
    )

    assert steps(tmp_path, "latest") == kept
    assert {Manifest.read(Path(path)).global_step for path in exports.values()} == {50}
