"""Microbatches, clipping, narrow dtypes and rematerialisation, within the one step of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from tests import fakes
from tests.fakes import final_state

CLIPPED = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.05, momentum=0.9))


def make(model_fn: Any, folder: Path, params: Any = None, **settings: Any) -> est.Estimator:
    return est.Estimator(
        model_fn,
        folder,
        fakes.config(**settings),
        params=params,
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
    )


@pytest.mark.parametrize(
    "devices",
    [1, est.DeviceConfig(devices=jax.devices()[:2], replication="per_replica")],
    ids=["one device", "two replicas"],
)
@pytest.mark.parametrize("scalar_loss", [False, True], ids=["loss [batch]", "scalar loss"])
def test_microbatches_train_as_the_whole_batch_does(tmp_path, devices, scalar_loss):
    log, ids = fakes.LoopLog(), fakes.IdLog()
    params = {"optimizer": CLIPPED, "scalar_loss": scalar_loss, "host_call": ids}
    estimator = make(fakes.mlp, tmp_path, params, devices=devices, gradient_accumulation_steps=4)

    state = final_state(estimator, lambda: fakes.numbered(13), hooks=[log])  # 8, and 5 that remain

    expected = fakes.mlp_by_hand(fakes.batches(13, 8), CLIPPED)
    fakes.assert_close(fakes.parameters(state), expected, 1e-6)
    assert ids.ids == [list(range(8)), list(range(8, 13))]
    assert log.examples == 13


def test_only_one_microbatch_is_in_work_at_a_time(tmp_path):
    seen: list[Any] = []

    def host_call(numbers):
        seen.append(numbers)

    def model_fn(features, labels, mode, params, context):
        assert params["batch_size"] == context.batch_size == len(labels)
        spec = fakes.mlp(features, labels, mode, params, context)
        numbers = jax.random.uniform(context.rng, (len(labels),))
        sizes.add(len(labels))
        return est.EstimatorSpec(
            mode, loss=spec.loss, optimizer=optax.sgd(0.1), host_call=(host_call, [numbers])
        )

    sizes: set[int] = set()
    estimator = make(model_fn, tmp_path, gradient_accumulation_steps=4)
    estimator.train(lambda: fakes.numbered(8))

    assert sizes == {8, 2}  # the variables are made for the whole batch
    assert len(set(seen[0].tolist())) == 8  # each has random numbers of its own


def test_batch_statistics_see_the_microbatches_one_after_the_other(tmp_path):
    def model_fn(features, labels, mode):
        training = mode == est.ModeKeys.TRAIN
        x = nn.BatchNorm(use_running_average=not training, momentum=0.5)(features["x"])
        loss = (nn.Dense(1)(x)[:, 0] - labels) ** 2
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.05))

    estimator = make(model_fn, tmp_path, gradient_accumulation_steps=2)
    state = final_state(estimator, lambda: fakes.numbered(8))

    x = fakes.numbered(8)[0]["x"]
    expected = 0.5 * (0.5 * x[0::2].mean(0)) + 0.5 * x[1::2].mean(0)
    np.testing.assert_allclose(
        state["model_state/batch_stats/BatchNorm_0/mean"], expected, rtol=1e-5, atol=1e-6
    )


def test_a_batch_that_does_not_divide_into_microbatches_is_an_error_that_says_which_would(tmp_path):
    with pytest.raises(ValueError, match=r"with 3 microbatches each. Use 6 or 9"):
        make(fakes.mlp, tmp_path, gradient_accumulation_steps=3)


@pytest.mark.parametrize("norm", [0.1, 1e6], ids=["clipped", "small enough"])
def test_gradients_are_clipped_by_their_norm_over_all_devices_and_microbatches(tmp_path, norm):
    optimizer = optax.chain(optax.clip_by_global_norm(norm), optax.sgd(1.0))
    split = est.DeviceConfig(
        devices=jax.devices()[:2], shard_parameters="fsdp", fsdp_min_elements=1
    )
    estimator = make(
        fakes.mlp,
        tmp_path,
        {"optimizer": optimizer},
        devices=split,
        gradient_accumulation_steps=2,
    )

    state = final_state(estimator, lambda: fakes.numbered(8))

    before = fakes.mlp_by_hand([], optimizer)
    changed = sum(
        np.sum((leaf - before[name]) ** 2) for name, leaf in fakes.parameters(state).items()
    )
    assert (np.sqrt(changed) == pytest.approx(norm, rel=1e-5)) == (norm < 1)
    fakes.assert_close(
        fakes.parameters(state), fakes.mlp_by_hand(fakes.batches(8, 8), optimizer), 1e-6
    )


def test_bfloat16_is_what_is_computed_in_and_float32_what_is_kept(tmp_path):
    seen: dict[str, Any] = {}

    def model_fn(features, labels, mode):
        training = mode == est.ModeKeys.TRAIN
        x = nn.Dense(8)(features["x"])
        seen["hidden"] = x.dtype
        x = nn.BatchNorm(use_running_average=not training)(x)
        outputs = nn.Dense(1)(x)[:, 0]
        if mode == est.ModeKeys.PREDICT:
            predictions = {"output": outputs}
            return est.EstimatorSpec(
                mode,
                predictions=predictions,
                export_outputs={"serving_default": est.export.PredictOutput(predictions)},
            )
        return est.EstimatorSpec(
            mode,
            loss=(outputs - labels.astype(outputs.dtype)) ** 2,
            optimizer=optax.adam(1e-2),
            host_call=(
                lambda id, output: seen.update(id=id, sent=output.dtype),
                {"id": features["id"], "output": outputs},
            ),
        )

    log = fakes.LoopLog()
    estimator = make(model_fn, tmp_path / "run", compute_dtype="bfloat16")

    state = final_state(estimator, lambda: fakes.numbered(8), hooks=[log])

    assert seen["hidden"] == jnp.bfloat16
    assert seen["sent"] == np.float32
    assert seen["id"].tolist() == list(range(8))  # no number that only counts is touched
    floats = [leaf.dtype for leaf in state.values() if leaf.dtype.kind == "f"]
    assert len(floats) == len(state) - 2  # the steps of training and of Adam
    assert set(floats) == {np.dtype(np.float32)}
    (prediction,) = estimator.predict(lambda: {"x": fakes.numbered(1)[0]["x"], "id": np.arange(1)})
    assert prediction["output"].dtype == np.float32
    feature = fakes.numbered(3)[0]
    path = estimator.export_saved_model(tmp_path / "export", est.export.serving_input(feature))
    served = est.export.load(path)["serving_default"](feature)
    assert served["output"].dtype == np.float32
    assert served["output"][0] == pytest.approx(prediction["output"], rel=1e-2)


def test_bfloat16_follows_a_loop_that_casts_by_hand_and_loses_no_small_update(tmp_path):
    optimizer = optax.sgd(1e-5)  # far less than the last bit of a parameter in bfloat16
    estimator = make(fakes.mlp, tmp_path, {"optimizer": optimizer}, compute_dtype="bfloat16")

    state = fakes.parameters(final_state(estimator, lambda: fakes.numbered(64)))

    def loss_fn(params, x, labels):
        params, x = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, x))
        hidden = jax.nn.relu(x @ params["Dense_0/kernel"] + params["Dense_0/bias"])
        outputs = hidden @ params["Dense_1/kernel"] + params["Dense_1/bias"]
        return jnp.mean((outputs[:, 0] - labels).astype(jnp.float32) ** 2)

    before = params = fakes.mlp_by_hand([], optimizer)
    for features, labels in fakes.batches(64, 8):
        grads = jax.jit(jax.grad(loss_fn))(params, features["x"], labels)
        params = jax.tree.map(lambda leaf, grad: leaf - np.float32(1e-5) * grad, params, grads)
    for name, leaf in state.items():
        updates = leaf - before[name]
        assert np.abs(updates).max() > 0
        np.testing.assert_allclose(
            updates, params[name] - before[name], atol=0.02 * np.abs(updates).max(), err_msg=name
        )


@pytest.mark.parametrize("given", ["float16", "fp8", 16])
def test_other_dtypes_are_refused(given):
    with pytest.raises(ValueError, match="Use 'bfloat16' or None"):
        est.RunConfig(compute_dtype=given)


def test_a_model_may_compute_again_what_it_does_not_keep(tmp_path):
    """The numbers stay; `examples/transformer.py` shows it of a whole block."""
    states = {}
    for dense in (nn.Dense, nn.remat(nn.Dense)):

        def model_fn(features, labels, mode, dense=dense):
            x = nn.relu(dense(8, name="first")(features["x"]))
            loss = (nn.Dense(1, name="last")(x)[:, 0] - labels) ** 2
            return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.05))

        estimator = make(model_fn, tmp_path / str(len(states)), gradient_accumulation_steps=2)
        states[dense] = final_state(estimator, lambda: fakes.numbered(16))
    kept, computed_again = states.values()
    fakes.assert_close(computed_again, kept, 1e-6)
