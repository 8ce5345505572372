"""Mistakes in the two specs are told when they are made."""

from __future__ import annotations

import pytest

import estimator as est

SERVING_INPUT = est.export.serving_input({"x": est.export.TensorSpec((None, 2), "float32")})


def fn():
    return []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: est.TrainSpec([1]), "TrainSpec.input_fn must be a function, got list"),
        (lambda: est.EvalSpec({}), "EvalSpec.input_fn must be a function, got dict"),
        (lambda: est.TrainSpec(fn, 1.5), "TrainSpec.max_steps must be a positive int"),
        (lambda: est.TrainSpec(fn, hooks=[3]), "TrainSpec.hooks must be est.hooks.Hook objects"),
        (lambda: est.TrainSpec(fn, saving_listeners=[3]), "TrainSpec.saving_listeners must have"),
        (lambda: est.EvalSpec(fn, hooks=est.hooks.Hook()), r"Write EvalSpec.hooks=\[...\]"),
        (lambda: est.EvalSpec(fn, exporters=[3]), "must be est.export.Exporter objects, got 3"),
        (
            lambda: est.EvalSpec(fn, exporters=est.export.LatestExporter(SERVING_INPUT)),
            r"Write exporters=\[...\]",
        ),
    ],
)
def test_what_has_the_wrong_type_is_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: est.TrainSpec(fn, max_steps=0), "TrainSpec.max_steps must be a positive int"),
        (lambda: est.EvalSpec(fn, steps=0), "EvalSpec.steps must be a positive int"),
        (lambda: est.EvalSpec(fn, name=""), "EvalSpec.name must be a string or None"),
        (lambda: est.EvalSpec(fn, throttle_secs=-1), "EvalSpec.throttle_secs must be seconds, 0"),
        (lambda: est.EvalSpec(fn, start_delay_secs="5"), "EvalSpec.start_delay_secs must be sec"),
        (
            lambda: est.EvalSpec(fn, exporters=[est.export.LatestExporter(SERVING_INPUT)] * 2),
            r"names \['latest', 'latest'\]",
        ),
    ],
)
def test_what_has_an_impossible_value_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
