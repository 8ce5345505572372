"""Where a step goes wrong is found: which layer, which gradient, which operation."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import estimator as est
from tests import fakes
from tests.fakes import batches, config, mlp, numbered, ramp

BATCH = numbered(8)


def spec_of(outputs, labels, mode):
    return est.EstimatorSpec(mode, loss=(outputs[:, 0] - labels) ** 2, optimizer=optax.sgd(0.1))


def by_name(report, kind):
    return {tensor.name: tensor for tensor in report.tensors if tensor.kind == kind}


@pytest.fixture(scope="module")
def healthy():
    return est.debug.trace_tensors(mlp, BATCH)


def test_layers_and_gradients_are_measured_as_by_hand(healthy):
    features, labels = BATCH
    kernels = [np.asarray(ramp(None, shape)) for shape in [(4, fakes.HIDDEN), (fakes.HIDDEN, 1)]]

    def loss(kernels):
        hidden = jax.nn.relu(features["x"] @ kernels[0])
        return jnp.mean(((hidden @ kernels[1])[:, 0] - labels) ** 2)

    hidden = features["x"] @ kernels[0]
    outputs = by_name(healthy, "output")
    assert list(outputs) == ["Dense_0", "Dense_1"]
    assert outputs["Dense_0"].norm == pytest.approx(np.linalg.norm(hidden), rel=1e-5)
    assert outputs["Dense_0"].largest == pytest.approx(np.abs(hidden).max(), rel=1e-5)
    gradients = jax.grad(loss)(kernels)
    for index, gradient in enumerate(gradients):
        traced = by_name(healthy, "gradient")[f"Dense_{index}/kernel"]
        assert traced.norm == pytest.approx(float(jnp.linalg.norm(gradient)), rel=1e-4)
        updated = by_name(healthy, "updated")[f"Dense_{index}/kernel"]
        after = kernels[index] - 0.05 * gradient
        assert updated.norm == pytest.approx(float(jnp.linalg.norm(after)), rel=1e-5)


def test_a_healthy_step_has_nothing_bad(healthy):
    assert healthy.first_bad is None and healthy.operation is None
    assert "All tensors of step 1 are finite" in str(healthy)


def test_gradients_come_from_the_last_layer_to_the_first(healthy):
    order = [(t.kind, t.name) for t in healthy.tensors if "gradient" in t.kind]

    assert [name for kind, name in order if kind == "output gradient"] == ["Dense_1", "Dense_0"]
    assert order.index(("output gradient", "Dense_1")) < order.index(("gradient", "Dense_1/bias"))
    assert order.index(("gradient", "Dense_1/bias")) < order.index(("output gradient", "Dense_0"))


def test_the_first_layer_that_turns_bad_is_named_with_the_operation():
    class Logarithm(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jnp.log(x - 1e6)

    def model_fn(features, labels, mode):
        x = nn.Dense(4)(features["x"])
        return spec_of(nn.Dense(1)(Logarithm()(x)), labels, mode)

    report = est.debug.trace_tensors(model_fn, BATCH)

    assert (report.first_bad.kind, report.first_bad.name) == ("output", "Logarithm_0")
    assert report.first_bad.nan == 1 and report.first_bad.inf == 0
    assert "primitive: log, at" in report.operation
    assert "test_tensor_trace.py" in report.operation and "(__call__)" in report.operation
    assert "the output of Logarithm_0: 100.00% of it are NaN" in report.verdict
    assert sum(line.startswith(">") for line in str(report).splitlines()) == 1


def test_a_gradient_that_is_bad_under_a_good_loss_is_named():
    def model_fn(features, labels, mode):
        x = nn.Dense(1, name="last")(nn.Dense(3, name="first")(features["x"]))
        return est.EstimatorSpec(mode, loss=jnp.sqrt(x[:, 0] * 0.0), optimizer=optax.sgd(0.1))

    report = est.debug.trace_tensors(model_fn, BATCH)

    assert (report.first_bad.kind, report.first_bad.name) == ("output gradient", "last")
    assert "primitive: mul" in report.operation


def test_infinite_numbers_are_told_from_nan():
    def model_fn(features, labels, mode):
        x = nn.Dense(2, kernel_init=ramp)(features["x"])
        x = nn.LayerNorm(use_scale=False, use_bias=False)(x.at[:2, 0].set(jnp.inf))
        return spec_of(x, labels, mode)

    features, labels = BATCH
    features = {"x": features["x"].copy()}
    features["x"][0, 0] = np.inf
    report = est.debug.trace_tensors(model_fn, (features, labels))

    assert (report.first_bad.kind, report.first_bad.name) == ("input", "features/x")
    assert (report.first_bad.nan, report.first_bad.inf) == (0, pytest.approx(1 / 32))


def test_layers_in_loops_made_anew_and_shared_are_reported():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return nn.remat(nn.Dense)(3)(x), None

    def model_fn(features, labels, mode):
        layers = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)(
            name="loop"
        )
        x, _ = layers(nn.Dense(3)(features["x"]), None)
        shared = nn.Dense(3, name="shared")
        return spec_of(shared(shared(x)), labels, mode)

    report = est.debug.trace_tensors(model_fn, BATCH)

    outputs = list(by_name(report, "output"))
    assert [name.split("/")[0] for name in outputs] == [
        "Dense_0",
        "loop",
        "loop[0]",
        "shared (call 1)",
        "shared (call 2)",
    ]
    kernel = by_name(report, "gradient")["loop/CheckpointDense_0/kernel"]
    assert kernel.shape == (3, 3, 3) and kernel.norm > 0


def test_models_that_are_not_of_linen_are_reported_without_layers():
    def model_fn(features, labels, mode, model):
        return spec_of(jnp.log(model(features["x"]) * 0.0 - 1.0), labels, mode)

    report = est.debug.trace_tensors(
        model_fn, BATCH, model=lambda rngs: nnx.Linear(4, 1, rngs=rngs)
    )

    assert report.first_bad.kind == "loss"
    assert "primitive: log" in report.operation
    assert by_name(report, "gradient")["kernel"].nan == 1


def nan_at_id_13(features, labels, mode, params, context):
    """The model of `mlp`, whose layer "odd" cannot bear the example with the id 13."""

    class Odd(nn.Module):
        @nn.compact
        def __call__(self, x, ids):
            return jnp.where(ids[:, None] == 13, jnp.nan, x)

    hidden = nn.Dense(4, kernel_init=ramp)(features["x"])
    return spec_of(
        nn.Dense(1, kernel_init=ramp)(Odd(name="odd")(hidden, features["id"])), labels, mode
    )


def resident():
    return est.input_pipeline.Dataset.from_arrays(numbered(20), device_resident=True)


@pytest.mark.parametrize(
    ("input_fn", "loop_steps"),
    [pytest.param(lambda: batches(20, 2), 5, id="batches"), pytest.param(resident, 1, id="rows")],
)
def test_debug_nans_traces_the_step_that_went_wrong(tmp_path, input_fn, loop_steps):
    def make(folder, **settings):
        settings = {"iterations_per_loop": loop_steps, "loop_shape": "device_loop", **settings}
        return est.Estimator(nan_at_id_13, folder, config(**settings), train_batch_size=2)

    with pytest.raises(
        est.NanLossError, match=r"step 7 .* is the output of odd: 50\.00%"
    ) as caught:
        make(tmp_path / "bad", debug_nans=True).train(input_fn, max_steps=10)

    report = caught.value.report
    assert report.step == 7
    good = make(tmp_path / "good")
    good.train(input_fn, max_steps=6)
    for name, value in fakes.saved_variables(good).items():
        traced = by_name(report, "variable")[name.removeprefix("params/")]
        assert traced.norm == pytest.approx(np.linalg.norm(value), rel=1e-5, abs=1e-6)


def test_a_state_of_a_checkpoint_is_traced(tmp_path):
    model = est.Estimator(mlp, tmp_path, config(), train_batch_size=4)
    model.train(lambda: batches(8, 4))
    report = est.debug.trace_tensors(mlp, BATCH, checkpoint_path=model.latest_checkpoint())

    assert report.step == 3
    kernel = model.get_variable_value("params/Dense_0/kernel")
    traced = by_name(report, "variable")["Dense_0/kernel"]
    assert traced.norm == pytest.approx(np.linalg.norm(kernel), rel=1e-5)


def test_what_cannot_be_traced_does_not_hide_the_loss(tmp_path):
    """A model that differentiates forward, which what listens to gradients does not allow."""

    def model_fn(features, labels, mode, context):
        weight = nn.Dense(1, kernel_init=ramp)
        _, slope = jax.jvp(weight, (features["x"],), (features["x"],))
        loss = jnp.where(context.step >= 2, jnp.nan, slope[:, 0] ** 2)
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.01))

    model = est.Estimator(model_fn, tmp_path, config(debug_nans=True), train_batch_size=2)
    with pytest.raises(est.NanLossError, match="step 3") as caught:
        model.train(lambda: batches(20, 2))
    assert "could not be traced" in caught.value.__notes__[0]
