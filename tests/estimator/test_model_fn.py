"""What model_fn may name, make and return, in every mode and way to hold variables."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import estimator as est

ROWS = 8
X = np.random.default_rng(5).normal(size=(ROWS, 3)).astype(np.float32)
Y = X.sum(axis=1)


def estimator(model_fn, model_dir, *, params=None, model=None, **config):
    return est.Estimator(
        model_fn,
        model_dir=model_dir,
        params=params,
        model=model,
        train_batch_size=4,
        eval_batch_size=4,
        predict_batch_size=4,
        config=est.RunConfig(
            devices=est.DeviceConfig(devices=jax.devices()[:1]),
            save_summary_steps=None,
            log_step_count_steps=None,
            **config,
        ),
    )


def data():
    return {"x": X}, Y


def spec_of(mode, outputs, labels):
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"y": outputs})
    return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.sgd(0.05))


# Arguments


def test_model_fn_is_called_with_what_it_names(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params, config, context):
        seen.append((mode, params, config, context))
        return spec_of(mode, nn.Dense(1)(features["x"])[:, 0], labels)

    runner = estimator(model_fn, tmp_path, params={"depth": 3})
    runner.train(data, max_steps=1)
    runner.evaluate(data)
    list(runner.predict(lambda: {"x": X}))

    assert {mode for mode, *_ in seen} == set(est.ModeKeys)
    for _, params, config, context in seen:
        assert params["depth"] == 3
        assert params["batch_size"] == context.batch_size == 4
        assert params["context"] is context
        assert config is runner.config
        assert context.num_replicas == 1


def _loss(features, mode=est.ModeKeys.EVAL):
    return est.EstimatorSpec(mode, loss=features["x"].sum(-1))


def _any(**values):
    return _loss(values["features"], values["mode"])


@pytest.mark.parametrize(
    "model_fn",
    [
        lambda features: _loss(features),
        lambda mode, features: _loss(features, mode),
        lambda features, mode, depth=3: _loss(features, mode),
        lambda features, mode, config, context, params: _loss(features, mode),
        functools.partial(lambda depth, features, mode: _loss(features, mode), 3),
        _any,
    ],
    ids=["features", "any order", "a default", "no labels", "partial", "any"],
)
def test_model_fn_may_name_any_of_them(tmp_path, model_fn):
    assert estimator(model_fn, tmp_path).evaluate(data)["loss"] == pytest.approx(
        float(Y.mean()), rel=1e-4, abs=1e-5
    )


def test_an_unknown_argument_is_refused_when_the_estimator_is_made(tmp_path):
    with pytest.raises(TypeError, match=r"model_fn needs an argument 'image'.*features, labels"):
        estimator(lambda image, mode: None, tmp_path)


@pytest.mark.parametrize("model_fn", [None, "model", 3])
def test_model_fn_must_be_a_function(tmp_path, model_fn):
    with pytest.raises(TypeError, match="model_fn must be a function, got"):
        estimator(model_fn, tmp_path)


def test_a_model_fn_that_names_model_needs_one(tmp_path):
    with pytest.raises(TypeError, match=r"argument 'model'.*Estimator\(model_fn, model=...\)"):
        estimator(lambda features, model, mode: None, tmp_path)


def test_a_change_of_params_in_model_fn_stays_there(tmp_path):
    def model_fn(features, mode, params):
        assert params.pop("depth") == 3
        return est.EstimatorSpec(mode, loss=features["x"].sum(-1))

    runner = estimator(model_fn, tmp_path, params={"depth": 3})
    runner.evaluate(data)

    assert runner.params == {"depth": 3}


# What it returns


@pytest.mark.parametrize(
    "returned, got",
    [(None, "NoneType"), ({"loss": 1.0}, "dict"), (1.0, "float"), ((1, 2), "tuple")],
)
@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_model_fn_must_return_a_spec(tmp_path, returned, got, call):
    runner = estimator(lambda features, mode: returned, tmp_path)

    with pytest.raises(TypeError, match=f"must return an EstimatorSpec, got {got}"):
        run(runner, call)


def run(runner, call):
    if call == "train":
        return runner.train(data, steps=1)
    if call == "evaluate":
        return runner.evaluate(data)
    return list(runner.predict(data))


@pytest.mark.parametrize(
    "call, attributes, missing",
    [
        ("train", {"optimizer": optax.sgd(0.1)}, "no loss in mode ModeKeys.TRAIN"),
        ("train", {"loss": True}, "no optimizer in mode ModeKeys.TRAIN"),
        ("evaluate", {}, "no loss in mode ModeKeys.EVAL"),
        ("predict", {"loss": True}, "no predictions in mode ModeKeys.PREDICT"),
    ],
)
def test_what_the_mode_needs_is_named(tmp_path, call, attributes, missing):
    def model_fn(features, mode):
        given = dict(attributes)
        if given.pop("loss", False):
            given["loss"] = nn.Dense(1)(features["x"])[:, 0]
        return est.EstimatorSpec(mode, **given)

    with pytest.raises(ValueError, match=missing):
        run(estimator(model_fn, tmp_path), call)


def test_a_spec_of_another_mode_is_refused(tmp_path):
    def model_fn(features):
        return est.EstimatorSpec(est.ModeKeys.PREDICT, predictions=features["x"])

    with pytest.raises(ValueError, match=r"called in mode 'eval' but returned .* for 'infer'"):
        estimator(model_fn, tmp_path).evaluate(data)


@pytest.mark.parametrize("shape", [(4, 1), (2,), (4, 3), (1,)])
@pytest.mark.parametrize("call", ["train", "evaluate"])
def test_a_loss_of_another_shape_is_refused_with_the_shape_expected(tmp_path, shape, call):
    def model_fn(features, mode):
        loss = jnp.zeros(shape) + nn.Dense(1)(features["x"]).sum()
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.1))

    with pytest.raises(ValueError, match=r"loss has the shape .*expected \[4\]"):
        run(estimator(model_fn, tmp_path), call)


def test_training_a_model_without_parameters_is_refused(tmp_path):
    def model_fn(features, mode):
        return est.EstimatorSpec(mode, loss=features["x"].sum(-1), optimizer=optax.sgd(0.1))

    with pytest.raises(ValueError, match="made no parameters"):
        estimator(model_fn, tmp_path).train(data, steps=1)


@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_an_error_in_model_fn_reaches_the_caller_as_itself(tmp_path, call):
    error = KeyError("hidden")

    def model_fn(features, mode):
        raise error

    with pytest.raises(KeyError) as caught:
        run(estimator(model_fn, tmp_path), call)
    assert caught.value is error


@pytest.mark.parametrize(
    "tensors, words",
    [
        ({"loss": 1, "logit": 1}, "signature"),
        ([1], "signature"),
        ([1, 1, 1], "signature"),
    ],
)
def test_a_metric_fn_that_does_not_fit_its_tensors_is_refused_at_the_trace(
    tmp_path, tensors, words
):
    ran = []

    def metric_fn(loss, logits):
        ran.append(1)
        return {}

    def model_fn(features, mode):
        loss = features["x"].sum(-1)
        return est.EstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, jax.tree.map(lambda _: loss, tensors))
        )

    with pytest.raises(TypeError, match=words):
        estimator(model_fn, tmp_path).evaluate(data)
    assert ran == []


# Variables


def test_batch_statistics_change_in_training_and_are_used_elsewhere(tmp_path):
    def model_fn(features, labels, mode):
        train = mode == est.ModeKeys.TRAIN
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(features["x"])
        return spec_of(mode, nn.Dense(1)(x)[:, 0], labels)

    runner = estimator(model_fn, tmp_path)
    runner.train(lambda: ({"x": X[:4]}, Y[:4]), max_steps=1)

    mean = runner.get_variable_value("batch_stats/BatchNorm_0/mean")
    var = runner.get_variable_value("batch_stats/BatchNorm_0/var")
    np.testing.assert_allclose(mean, 0.5 * X[:4].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, 0.5 + 0.5 * X[:4].var(0), rtol=1e-5, atol=1e-6)
    scale = runner.get_variable_value("params/BatchNorm_0/scale")
    offset = runner.get_variable_value("params/BatchNorm_0/bias")
    kernel = runner.get_variable_value("params/Dense_0/kernel")
    bias = runner.get_variable_value("params/Dense_0/bias")
    normal = (X - mean) / np.sqrt(var + 1e-5) * scale + offset
    wanted = (normal @ kernel + bias)[:, 0]
    got = [result["y"] for result in runner.predict(lambda: {"x": X})]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert runner.evaluate(data)["loss"] == pytest.approx(
        float(((wanted - Y) ** 2).mean()), rel=1e-4
    )


def test_an_evaluation_has_no_random_numbers_for_dropout(tmp_path):
    def model_fn(features, labels, mode):
        x = nn.Dropout(0.5, deterministic=False)(features["x"])
        return spec_of(mode, nn.Dense(1)(x)[:, 0], labels)

    runner = estimator(model_fn, tmp_path)
    runner.train(data, max_steps=1)

    with pytest.raises(Exception, match="dropout"):
        runner.evaluate(data)


def linen_model(features, labels, mode, model):
    return spec_of(mode, model(features["x"])[:, 0], labels)


class Line(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


FUNCTIONAL = est.Functional(
    lambda rng, features: {
        "kernel": jax.random.normal(rng, (features["x"].shape[-1], 1)),
        "bias": jnp.zeros(1),
    },
    lambda params, x: x @ params["kernel"] + params["bias"],
)


@pytest.mark.parametrize(
    "model, prefix",
    [
        (nn.Dense(1), "params/"),
        (lambda rngs: Line(rngs), "params/linear/"),
        (FUNCTIONAL, "params/"),
    ],
    ids=["linen", "nnx", "functional"],
)
def test_every_way_to_hold_variables_evaluates_predicts_and_exports(tmp_path, model, prefix):
    runner = estimator(linen_model, tmp_path, model=model)
    runner.train(data, max_steps=2)
    kernel = runner.get_variable_value(f"{prefix}kernel")
    bias = runner.get_variable_value(f"{prefix}bias")
    wanted = (X @ kernel + bias)[:, 0]

    got = [result["y"] for result in runner.predict(lambda: {"x": X})]
    loss = runner.evaluate(data)["loss"]
    path = runner.export_saved_model(tmp_path / "export", est.export.serving_input({"x": X}))
    served = est.export.load(path)["serving_default"]({"x": X})["y"]

    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(float(((wanted - Y) ** 2).mean()), rel=1e-5)
    np.testing.assert_allclose(served, wanted, rtol=1e-5, atol=1e-6)


def test_a_model_of_another_kind_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"model must be a flax.linen module.*got dict"):
        estimator(linen_model, tmp_path, model={})


class KeywordLine(nnx.Module):
    def __init__(self, width=1, *, rngs):
        self.linear = nnx.Linear(X.shape[1], width, rngs=rngs)

    def __call__(self, features):
        return self.linear(features)


@pytest.mark.parametrize(
    "model",
    [
        KeywordLine,
        functools.partial(KeywordLine, 1),
        lambda streams: KeywordLine(rngs=streams),
        lambda *, rngs, width=1: KeywordLine(width, rngs=rngs),
    ],
    ids=["class", "partial", "by position", "by name"],
)
def test_a_builder_is_given_its_random_streams_as_it_takes_them(tmp_path, model):
    runner = estimator(linen_model, tmp_path, model=model)
    runner.train(data, max_steps=1)

    assert "params/linear/kernel" in runner.get_variable_names()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Dense, r"model=Dense is the class of a linen module.*model=Dense\(...\)"),
        (lambda: KeywordLine(rngs=nnx.Rngs(0)), r"called as model\(rngs\), but takes other argum"),
        (nnx.Linear, r"model=Linear is called as model\(rngs=rngs\).*'in_features'.*lambda"),
    ],
    ids=["linen class", "no rngs", "more arguments"],
)
def test_what_cannot_build_a_model_is_refused_with_the_way_to_do_it(tmp_path, model, words):
    with pytest.raises(TypeError, match=words):
        estimator(linen_model, tmp_path, model=model)


def test_a_builder_of_something_else_is_refused(tmp_path):
    runner = estimator(linen_model, tmp_path, model=lambda rngs: nn.Dense(1))

    with pytest.raises(TypeError, match=r"built a Dense; expected an nnx.Module.*model=nn.Dense"):
        runner.train(data, max_steps=1)


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        (
            (lambda rng: 0, lambda p, x: x),
            r"Functional.init is called as init\(rng, features\), but",
        ),
        ((lambda a, b, c: 0, lambda p, x: x), r"Functional.init.*'c'"),
        ((3, lambda p, x: x), "Functional.init must be a function.*got int"),
        (
            (lambda r, f: 0, None),
            r"Functional.apply must be.*apply\(params, \*args\); got NoneType",
        ),
    ],
)
def test_functions_that_a_functional_cannot_call_are_refused(functions, words):
    with pytest.raises(TypeError, match=words):
        est.Functional(*functions)


def test_a_model_that_uses_fewer_variables_to_predict_restores_those(tmp_path):
    def model_fn(features, labels, mode):
        outputs = nn.Dense(1, name="head")(features["x"])[:, 0]
        if mode != est.ModeKeys.PREDICT:
            outputs = outputs + nn.Dense(1, name="auxiliary")(features["x"])[:, 0]
        return spec_of(mode, outputs, labels)

    runner = estimator(model_fn, tmp_path)
    runner.train(data, max_steps=1)
    kernel = runner.get_variable_value("params/head/kernel")
    bias = runner.get_variable_value("params/head/bias")

    got = [result["y"] for result in runner.predict(lambda: {"x": X})]

    np.testing.assert_allclose(got, (X @ kernel + bias)[:, 0], rtol=1e-5, atol=1e-6)


def test_a_model_without_variables_predicts_even_with_a_checkpoint(tmp_path):
    def model_fn(features, labels, mode):
        if mode == est.ModeKeys.PREDICT:
            return est.EstimatorSpec(mode, predictions={"y": features["x"].sum(-1)})
        return spec_of(mode, nn.Dense(1)(features["x"])[:, 0], labels)

    runner = estimator(model_fn, tmp_path)
    runner.train(data, max_steps=1)

    got = [result["y"] for result in runner.predict(lambda: {"x": X})]
    np.testing.assert_allclose(got, X.sum(-1), rtol=1e-5, atol=1e-6)
