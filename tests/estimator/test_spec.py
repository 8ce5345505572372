"""What an EstimatorSpec must have in each mode, and the words for what it lacks."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from estimator.spec import EstimatorSpec, HostFunction, ModeKeys

LOSS = jnp.zeros(4)
SGD = optax.sgd(0.1)


def test_modes_have_the_values_of_old():
    assert (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT) == ("train", "eval", "infer")


@pytest.mark.parametrize(
    "mode, given, missing",
    [
        (ModeKeys.TRAIN, {"optimizer": SGD}, "loss"),
        (ModeKeys.TRAIN, {"loss": LOSS}, "optimizer"),
        (ModeKeys.EVAL, {"predictions": LOSS}, "loss"),
        (ModeKeys.PREDICT, {"loss": LOSS}, "predictions"),
    ],
)
def test_what_a_mode_needs_is_named(mode, given, missing):
    with pytest.raises(ValueError, match=f"no {missing} in mode ModeKeys.{mode.name}.*{missing}="):
        EstimatorSpec(mode, **given)


@pytest.mark.parametrize(
    "mode, given",
    [
        (ModeKeys.TRAIN, {"loss": LOSS, "optimizer": SGD}),
        (ModeKeys.EVAL, {"loss": LOSS}),
        (ModeKeys.EVAL, {"loss": jnp.float32(1.0)}),
        (ModeKeys.EVAL, {"loss": LOSS.astype(jnp.bfloat16)}),
        (ModeKeys.PREDICT, {"predictions": LOSS}),
        ("infer", {"predictions": {"a": LOSS}}),
    ],
)
def test_what_suffices_is_accepted(mode, given):
    assert EstimatorSpec(mode, **given).mode == mode


@pytest.mark.parametrize("mode", ["predict", None, 3])
def test_an_unknown_mode_is_an_error_that_says_what_to_pass(mode):
    with pytest.raises(ValueError, match="mode") as caught:
        EstimatorSpec(mode, loss=LOSS)
    assert repr(mode) in str(caught.value)
    assert "ModeKeys" in str(caught.value)


@pytest.mark.parametrize(
    "loss, got",
    [
        (0.5, "float"),
        (jnp.zeros(4, jnp.int32), r"int32\[4\]"),
        (jnp.zeros(4, bool), r"bool\[4\]"),
        (jnp.zeros(4, jnp.complex64), r"complex64\[4\]"),
        ([LOSS], "list"),
        ("loss", "str"),
    ],
)
def test_a_loss_must_be_a_floating_point_array(loss, got):
    with pytest.raises(TypeError, match=f"loss must be a floating point array, got {got}"):
        EstimatorSpec(ModeKeys.EVAL, loss=loss)


@pytest.mark.parametrize("optimizer", [0.1, "adam", optax.adam])
def test_an_optimizer_must_be_an_optax_one(optimizer):
    with pytest.raises(TypeError, match=r"optimizer must be an optax.*got"):
        EstimatorSpec(ModeKeys.TRAIN, loss=LOSS, optimizer=optimizer)


@pytest.mark.parametrize("name", ["metrics", "export_outputs"])
@pytest.mark.parametrize("value", [LOSS, [LOSS], "accuracy"])
def test_metrics_and_export_outputs_are_given_by_name(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a dict, got {type(value).__name__}"):
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, **{name: value})


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_metrics_may_not_use_the_names_of_the_estimators_own_results(name):
    with pytest.raises(ValueError, match=rf"must not use the names \['{name}'\]"):
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, metrics={name: LOSS})


def made(name, fn, tensors) -> dict[str, Any]:
    return {name: (fn, tensors)}


def by_name(loss, logits):
    return {"got": (loss, logits)}


@pytest.mark.parametrize("name", ["eval_metrics", "host_call"])
@pytest.mark.parametrize(
    "tensors, words",
    [
        ({"loss": LOSS}, ["loss, logits", "['loss']", "logits"]),
        ({"loss": LOSS, "logit": LOSS}, ["loss, logits", "['logit', 'loss']"]),
        ({"loss": LOSS, "logits": LOSS, "labels": LOSS}, ["labels"]),
        ([LOSS], ["loss, logits", "1 tensors by position"]),
        ([LOSS, LOSS, LOSS], ["loss, logits", "3 tensors by position"]),
        ([], ["0 tensors by position"]),
    ],
)
def test_tensors_that_do_not_fit_the_function_are_refused_with_both_sides(
    name: Any, tensors, words
):
    with pytest.raises(TypeError, match=f"The function of {name} has the signature") as caught:
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, **made(name, by_name, tensors))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["eval_metrics", "host_call"])
@pytest.mark.parametrize(
    "given, words",
    [
        (by_name, r"pair \(function, tensors\), got function"),
        ([by_name, {}], r"pair \(function, tensors\), got list"),
        ((by_name,), r"pair \(function, tensors\), got tuple"),
        ((LOSS, by_name), r"pair \(function, tensors\)"),
        ((by_name, LOSS), r"must be a list .* or a dict"),
        ((by_name, None), r"must be a list .* or a dict .*got NoneType"),
    ],
)
def test_a_host_function_is_a_pair_of_function_and_tensors(name, given, words):
    with pytest.raises(TypeError, match=words):
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, **{name: given})


@pytest.mark.parametrize(
    "tensors", [{"loss": 1, "logits": 2}, {"logits": 2, "loss": 1}, [1, 2], (1, 2)]
)
def test_dicts_are_passed_by_name_and_lists_by_position(tensors):
    host_function = HostFunction.parse("eval_metrics", (by_name, tensors))

    assert host_function.call(tensors) == {"got": (1, 2)}


def test_a_function_that_names_step_is_given_it():
    def with_step(loss, step):
        return loss, step

    host_function = HostFunction.parse("host_call", (with_step, [LOSS]), injected=("step",))

    assert host_function.takes("step")
    assert host_function.call([1], step=7) == (1, 7)


def test_a_step_among_the_tensors_is_the_users_own():
    tensors = {"loss": LOSS, "step": LOSS}

    host_function = HostFunction.parse(
        "host_call", (lambda loss, step: None, tensors), injected=("step",)
    )

    assert not host_function.takes("step")


def test_functions_without_a_signature_are_called_as_they_are():
    host_function = HostFunction.parse("eval_metrics", (dict, {"a": np.zeros(2)}))

    assert set(host_function.call({"a": 1})) == {"a"}


def test_any_arguments_may_be_taken():
    host_function = HostFunction.parse("eval_metrics", (lambda **values: values, {"a": LOSS}))

    assert host_function.call({"a": 3}) == {"a": 3}
