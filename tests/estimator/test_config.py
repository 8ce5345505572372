"""Settings are checked when they are made, and say what is wrong with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import pytest

import estimator as est
from hooks import EverySecs, EverySteps


def table_model(features, mode):
    return est.EstimatorSpec(mode, loss=features, predictions=features)


@pytest.mark.parametrize(
    "name",
    [
        "iterations_per_loop",
        "save_checkpoints_steps",
        "keep_checkpoint_max",
        "save_summary_steps",
        "log_step_count_steps",
        "host_call_every_n_steps",
        "infeed_buffer_bytes",
    ],
)
@pytest.mark.parametrize("value", [0, -3, 2.5, True])
def test_counts_must_be_positive_whole_numbers(name: Any, value):
    with pytest.raises((TypeError, ValueError), match=f"{name}.*{value!r}") as caught:
        est.RunConfig(**{name: value})
    assert "positive int" in str(caught.value)


@pytest.mark.parametrize("value", ["10", "soon", "-5s", "", [10]])
def test_what_is_no_length_of_a_loop_is_refused(value):
    with pytest.raises((TypeError, ValueError), match="iterations_per_loop"):
        est.RunConfig(iterations_per_loop=value)


@pytest.mark.parametrize(
    "name", ["save_summary_steps", "log_step_count_steps", "keep_checkpoint_max"]
)
def test_what_may_be_turned_off_takes_none(name):
    given: Any = {name: None}
    assert getattr(est.RunConfig(**given), name) is None


@pytest.mark.parametrize("watchers", [est.hooks.FileWatcher("f"), "f", [print]])
def test_watchers_are_a_list_of_objects_that_poll(watchers):
    with pytest.raises(TypeError, match="preemption_watchers must"):
        est.RunConfig(preemption_watchers=watchers)


def test_a_grace_period_must_be_positive():
    with pytest.raises(ValueError, match="preemption_grace_secs must be a positive number"):
        est.RunConfig(preemption_grace_secs=0)


@pytest.mark.parametrize("secs", [0, -1, "60", float("nan")])
def test_seconds_must_be_positive(secs):
    with pytest.raises(ValueError, match="save_checkpoints_secs must be a positive number of sec"):
        est.RunConfig(save_checkpoints_secs=secs)


@pytest.mark.parametrize("hours", [0, -1, "2", float("nan")])
def test_hours_must_be_positive(hours):
    with pytest.raises(ValueError, match="keep_checkpoint_every_n_hours must be a positive number"):
        est.RunConfig(keep_checkpoint_every_n_hours=hours)


@pytest.mark.parametrize(
    ("settings", "steps", "secs"),
    [
        ({"save_checkpoints_steps": 7}, 7, None),
        ({"save_checkpoints_secs": 5.5}, None, 5.5),
        ({"save_checkpoints_steps": 7, "save_checkpoints_secs": 5.5}, 7, 5.5),
        ({"save_checkpoints_secs": float("inf")}, None, float("inf")),
        ({}, None, 600),
    ],
)
def test_checkpoints_are_due_by_steps_by_seconds_by_both_or_every_ten_minutes(
    settings, steps, secs
):
    every = est.RunConfig(**settings).save_checkpoints_every()
    assert [one.steps for one in every if isinstance(one, EverySteps)] == [steps] * bool(steps)
    assert [one.secs for one in every if isinstance(one, EverySecs)] == [secs] * bool(secs)


@pytest.mark.parametrize(
    ("given", "words"), [({"mode": "best"}, "mode='best' is not known"), ({"count": 0}, "count")]
)
def test_what_is_best_is_checked(given, words):
    with pytest.raises(ValueError, match=words):
        est.KeepBest(**given)


def test_a_bare_metric_as_what_is_best_is_refused_with_the_right_way_to_write_it():
    given: Any = "loss"
    with pytest.raises(TypeError, match=r"Write keep_checkpoint_best=KeepBest\(metric="):
        est.RunConfig(keep_checkpoint_best=given)


@pytest.mark.parametrize("seed", [1.5, "7", None, True])
def test_a_seed_must_be_a_whole_number(seed):
    with pytest.raises(TypeError, match="seed must be an int, got"):
        est.RunConfig(seed=seed)


def test_devices_must_be_a_device_config():
    with pytest.raises(TypeError, match=r"devices must be a DeviceConfig.*DeviceConfig\(devices="):
        est.RunConfig(devices=jax.devices())  # type: ignore[arg-type]


def test_settings_are_frozen_keyword_only_and_changed_by_replace():
    config = est.RunConfig(seed=3)

    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        est.RunConfig("model_dir")  # type: ignore[misc]
    assert dataclasses.replace(config, seed=4).seed == 4
    with pytest.raises(ValueError):
        dataclasses.replace(config, iterations_per_loop=0)


# The constructor of the Estimator


def test_a_batch_size_that_does_not_divide_names_the_nearest_that_do(tmp_path):
    with pytest.raises(ValueError) as caught:
        est.Estimator(table_model, model_dir=tmp_path, train_batch_size=20)

    message = str(caught.value)
    for word in ("train_batch_size=20", "8 replicas", "16", "24"):
        assert word in message


@pytest.mark.parametrize("name", ["train_batch_size", "eval_batch_size", "predict_batch_size"])
def test_each_batch_size_is_checked_by_name(tmp_path, name):
    def made(size: Any):
        given: Any = {name: size}
        return est.Estimator(table_model, model_dir=tmp_path, **given)

    with pytest.raises(ValueError, match=f"{name}=3 does not divide.*Use 8"):
        made(3)
    with pytest.raises((TypeError, ValueError), match=f"{name} must be a positive int, got 0"):
        made(0)
    with pytest.raises(TypeError, match=f"{name} must be a positive int, got 8.0"):
        made(8.0)


@pytest.mark.parametrize("key", ["batch_size", "context"])
def test_reserved_params_are_refused(tmp_path, key):
    with pytest.raises(ValueError, match=rf"params must not hold \['{key}'\]"):
        est.Estimator(table_model, model_dir=tmp_path, params={key: 3})


def test_params_and_config_must_be_of_their_kind(tmp_path):
    with pytest.raises(TypeError, match="params must be a dict, got list"):
        est.Estimator(table_model, model_dir=tmp_path, params=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config must be a RunConfig, got dict"):
        est.Estimator(table_model, model_dir=tmp_path, config={})  # type: ignore[arg-type]


def test_params_of_an_estimator_are_a_copy(tmp_path):
    given = {"depth": 3}
    estimator = est.Estimator(table_model, model_dir=tmp_path, params=given)

    given["depth"] = 4
    estimator.params["depth"] = 5

    assert estimator.params == {"depth": 3}


def test_model_dir_may_come_from_either_side_but_not_differ(tmp_path):
    config = est.RunConfig(model_dir=tmp_path / "a")

    assert est.Estimator(table_model, config=config).model_dir == str(tmp_path / "a")
    both = est.Estimator(table_model, str(tmp_path / "a"), config)
    assert both.model_dir == str(tmp_path / "a")
    with pytest.raises(ValueError, match=r"differ\. Give one of them"):
        est.Estimator(table_model, tmp_path / "b", config)


def test_without_a_model_dir_a_temporary_one_is_made_with_a_warning(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    estimator = est.Estimator(table_model)

    assert estimator.model_dir.startswith(str(tmp_path))
    assert estimator.model_dir in caplog.text


def test_without_a_checkpoint_there_are_no_variables_to_read(tmp_path):
    estimator = est.Estimator(table_model, model_dir=tmp_path)

    assert estimator.latest_checkpoint() is None
    with pytest.raises(FileNotFoundError, match="Call train first"):
        estimator.get_variable_names()
    with pytest.raises(FileNotFoundError, match="Call train first"):
        estimator.get_variable_value("params/Dense_0/bias")
