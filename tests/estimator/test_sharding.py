"""Where variables and the optimizer's arrays lie, and that no number depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import estimator as est
from estimator.device_config import DeviceConfig
from estimator.mesh import Placement
from estimator.sharding import state_shardings, variable_shardings
from estimator.state import TrainState
from tests import fakes, models
from tests.fakes import final_state

RULES = [(pattern, P(*names)) for pattern, names in models.TENSOR_RULES]


def placement(devices: int = 8, **settings: Any) -> Placement:
    return Placement.make(DeviceConfig(devices=jax.devices()[:devices], **settings))


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, np.float32)


def specs(place: Placement, variables: Any, annotated: Any = None) -> dict[str, P]:
    found = variable_shardings(place, variables, annotated or {})
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(found)
    }


LAYER = {"params": {"Dense_0": {"kernel": shape(12, 32), "bias": shape(32)}}}
KERNEL, BIAS = "params/Dense_0/kernel", "params/Dense_0/bias"


def test_without_a_word_variables_are_whole_everywhere():
    assert specs(placement(fsdp_size=4), LAYER) == {KERNEL: P(), BIAS: P()}


def test_the_first_rule_that_fits_a_whole_name_decides():
    rules = [("kernel", P("fsdp")), (".*/kernel", P("fsdp", "model")), (".*", P("model"))]
    place = placement(fsdp_size=4, num_cores_per_replica=2, shard_parameters=rules)

    assert specs(place, LAYER) == {KERNEL: P("fsdp", "model"), BIAS: P("model")}


def test_a_function_decides_by_name_and_shape():
    def rule(name, leaf):
        return P(None, "fsdp") if name.endswith("kernel") and leaf.shape == (12, 32) else None

    assert specs(placement(fsdp_size=8, shard_parameters=rule), LAYER) == {
        KERNEL: P(None, "fsdp"),
        BIAS: P(),
    }


@pytest.mark.parametrize(
    "sizes, spec",
    [
        ((12, 32), P(None, "fsdp")),  # the largest
        ((32, 12), P("fsdp")),
        ((16, 16), P("fsdp")),  # the first of two
        ((16, 33), P("fsdp")),  # the largest that divides
        ((5, 33), P()),  # none divides
        ((8, 2), P()),  # small
        ((), P()),
    ],
)
def test_automatic_sharding_splits_the_largest_dimension_that_divides(sizes, spec):
    place = placement(shard_parameters="fsdp", fsdp_min_elements=17)

    assert specs(place, {"params": {"w": shape(*sizes)}}) == {"params/w": spec}


def test_rules_go_before_what_the_model_says_and_that_before_automatic_sharding():
    said = {KERNEL: P("model"), BIAS: P("model")}
    rules = placement(num_cores_per_replica=2, shard_parameters=[(".*/kernel", P())])
    automatic = placement(num_cores_per_replica=2, shard_parameters="fsdp", fsdp_min_elements=1)

    assert specs(rules, LAYER, said) == {KERNEL: P(), BIAS: P("model")}
    assert specs(automatic, LAYER, {BIAS: P("model")}) == {
        KERNEL: P(None, "fsdp"),
        BIAS: P("model"),
    }


@pytest.mark.parametrize(
    "sizes, spec, words",
    [
        ((12, 30), P(None, "fsdp"), r"w \[12, 30\] splits dimension 1, of 30, into 4 parts"),
        ((12,), P(("fsdp", "model")), r"of 12, into 8 parts, the size of mesh 'fsdp' x 'model'"),
        ((12,), P("fsdp", "model"), "has 2 entries for 1 dimensions"),
        ((12,), P("tensor"), "names the mesh axis 'tensor'"),
    ],
)
def test_a_spec_that_does_not_fit_names_the_variable(sizes, spec, words):
    place = placement(fsdp_size=4, num_cores_per_replica=2, shard_parameters=lambda *_: spec)

    with pytest.raises(ValueError, match=words):
        specs(place, {"params": {"w": shape(*sizes)}})


def test_a_function_that_returns_something_else_is_told_what_to_return():
    place = placement(shard_parameters=lambda *_: "fsdp")

    with pytest.raises(TypeError, match="returned 'fsdp' for params/w"):
        specs(place, {"params": {"w": shape(8)}})


PARAMS = {
    "first": {"kernel": shape(4, 32), "bias": shape(32)},
    "second": {"kernel": shape(32, 1), "bias": shape(1)},
}


def state_of(optimizer: Any) -> TrainState:
    opt_state = jax.eval_shape(optimizer.init, PARAMS)
    return TrainState(step=shape(), params=PARAMS, model_state={}, opt_state=opt_state)


@pytest.mark.parametrize(
    "optimizer, copies",
    [
        (optax.adam(1e-3), 2),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9)), 1),
        (optax.masked(optax.adam(1e-3), {"first": True, "second": False}), 2),
        (
            optax.multi_transform(
                {"a": optax.adam(1e-3), "b": optax.sgd(0.1)}, {"first": "a", "second": "b"}
            ),
            2,
        ),
        (optax.MultiSteps(optax.adam(1e-3), 2), 3),
        (optax.inject_hyperparams(optax.adam)(learning_rate=0.1), 2),
    ],
    ids=["adam", "chain", "masked", "multi_transform", "MultiSteps", "inject_hyperparams"],
)
def test_what_an_optimizer_keeps_of_a_parameter_lies_with_it(optimizer, copies):
    place = placement(shard_parameters=[(".*/first/kernel", P(None, "fsdp"))], fsdp_size=8)

    found = state_shardings(place, state_of(optimizer), {}).opt_state

    names = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(found)
    }
    split = [name for name, spec in names.items() if spec == P(None, "fsdp")]
    assert len(split) == copies
    assert all(name.endswith("first/kernel") for name in split)
    assert all(spec == P() for name, spec in names.items() if name not in split)


def test_what_an_optimizer_keeps_in_another_shape_is_whole_everywhere():
    place = placement(shard_parameters=[(".*/first/kernel", P(None, "fsdp"))], fsdp_size=8)
    factored = optax.adafactor(1e-3, min_dim_size_to_factor=4)

    found = state_shardings(place, state_of(factored), {})

    assert {leaf.spec for leaf in jax.tree.leaves(found.opt_state)} == {P()}


def test_a_rule_that_fits_no_variable_is_an_error_that_lists_them():
    place = placement(shard_parameters=[(".*/bias", P()), ("kernel", P())])

    with pytest.raises(ValueError, match=r"'kernel' .* fits no variable.*params/first/bias"):
        state_shardings(place, state_of(optax.sgd(0.1)), {})


def on(model_fn: Any, folder: Path, devices: DeviceConfig, **settings: Any) -> est.Estimator:
    return est.Estimator(
        model_fn,
        folder,
        fakes.config(devices=devices, **settings),
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
    )


def lie(estimator: est.Estimator, input_fn: Any) -> dict[str, P]:
    """Trains one step, and returns where the arrays of the state lie."""
    kept: list[Any] = []
    hook = est.hooks.LambdaHook(after_loop=lambda view: kept.append(view.state()))
    estimator.train(input_fn, hooks=[hook], steps=1)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.sharding.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(kept[-1])
        if leaf.sharding.spec != P()
    }


def regression(outputs: Any, labels: Any, mode: str) -> est.EstimatorSpec:
    return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.adam(1e-2))


def test_what_linen_says_of_its_variables_is_honoured(tmp_path):
    def model_fn(features, labels, mode):
        up = nn.with_partitioning(fakes.ramp, (None, "model"))
        down = nn.with_logical_partitioning(fakes.ramp, ("hidden", "out"))
        x = nn.relu(nn.Dense(8, kernel_init=up, name="up")(features["x"]))
        x = nn.with_logical_constraint(x, ("batch", "hidden"))
        return regression(nn.Dense(1, kernel_init=down, name="down")(x)[:, 0], labels, mode)

    devices = DeviceConfig(
        num_cores_per_replica=4, logical_axis_rules=[("hidden", "model"), ("batch", "data")]
    )

    assert lie(on(model_fn, tmp_path, devices), lambda: fakes.numbered(8)) == {
        "params/up/kernel": P(None, "model"),
        "params/down/kernel": P("model", None),
        "opt_state/0/mu/up/kernel": P(None, "model"),
        "opt_state/0/mu/down/kernel": P("model", None),
        "opt_state/0/nu/up/kernel": P(None, "model"),
        "opt_state/0/nu/down/kernel": P("model", None),
    }


def test_what_nnx_says_of_its_variables_is_honoured(tmp_path):
    def build(rngs):
        kernel = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "hidden"))
        return nnx.Linear(4, 8, kernel_init=kernel, rngs=rngs)

    def model_fn(features, labels, mode, model):
        return regression(model(features["x"]).sum(-1), labels, mode)

    devices = DeviceConfig(num_cores_per_replica=4, logical_axis_rules=[("hidden", "model")])
    estimator = est.Estimator(
        model_fn, tmp_path, fakes.config(devices=devices), train_batch_size=8, model=build
    )

    assert lie(estimator, lambda: fakes.numbered(8)) == {
        "params/kernel": P(None, "model"),
        "opt_state/0/mu/kernel": P(None, "model"),
        "opt_state/0/nu/kernel": P(None, "model"),
    }


def test_a_model_may_say_where_its_activations_lie(tmp_path):
    seen: list[Any] = []

    def model_fn(features, labels, mode):
        x = nn.Dense(8)(features["x"])
        x = jax.lax.with_sharding_constraint(x, P("data", "model"))
        jax.debug.inspect_array_sharding(x, callback=lambda s: seen.append(s.shard_shape((8, 8))))
        return regression(nn.Dense(1)(x)[:, 0], labels, mode)

    estimator = on(model_fn, tmp_path, DeviceConfig(num_cores_per_replica=2))
    estimator.train(lambda: fakes.numbered(8), steps=1)

    assert seen[-1] == (2, 4)


LAYOUTS = {
    "1 device": DeviceConfig(devices=jax.devices()[:1]),
    "2 devices": DeviceConfig(devices=jax.devices()[:2]),
    "4 devices": DeviceConfig(devices=jax.devices()[:4]),
    "8 devices": DeviceConfig(),
    "fsdp": DeviceConfig(shard_parameters="fsdp", fsdp_min_elements=1),
    "hybrid": DeviceConfig(shard_parameters="fsdp", fsdp_size=4, fsdp_min_elements=1),
    "tensor": DeviceConfig(num_cores_per_replica=2, fsdp_size=2, shard_parameters=RULES),
}


@pytest.fixture(scope="module")
def losses_of(tmp_path_factory):
    """Losses of 50 steps by model and layout, each trained once."""
    known: dict[Any, Any] = {}

    def losses(name: str, layout: str) -> list[float]:
        model_fn, data = {
            "convnet": (models.convnet, models.images(40)),
            "transformer": (models.transformer, models.sentences(40)),
        }[name]
        if (name, layout) not in known:
            log = fakes.LoopLog()
            estimator = on(
                model_fn, tmp_path_factory.mktemp("run"), LAYOUTS[layout], iterations_per_loop=25
            )
            estimator.train(
                lambda: est.input_pipeline.Dataset.from_arrays(data).repeat(),
                hooks=[log],
                max_steps=50,
            )
            known[name, layout] = log.losses
        return known[name, layout]

    return losses


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["2 devices", "4 devices", "8 devices", "fsdp", "hybrid"])
@pytest.mark.parametrize("name", ["convnet", "transformer"])
def test_fifty_steps_do_not_depend_on_where_the_arrays_lie(losses_of, name, layout):
    expected = losses_of(name, "1 device")

    assert 0.1 < expected[-1] < 0.98 * expected[0]  # it learns, and is not yet perfect
    np.testing.assert_allclose(losses_of(name, layout), expected, rtol=1e-5)


@pytest.mark.slow
def test_fifty_steps_do_not_depend_on_tensor_parallelism(losses_of):
    expected = losses_of("transformer", "1 device")

    np.testing.assert_allclose(losses_of("transformer", "tensor"), expected, rtol=1e-5)


MLP_RULES = [(".*/Dense_0/kernel", P("fsdp", "model")), (".*/Dense_1/kernel", P("model", "fsdp"))]
MLP_LAYOUTS = {
    "1 device": DeviceConfig(devices=jax.devices()[:1]),
    "2 devices": DeviceConfig(devices=jax.devices()[:2]),
    "tensor": DeviceConfig(
        devices=jax.devices()[:4], num_cores_per_replica=2, shard_parameters=MLP_RULES
    ),
    "fsdp": DeviceConfig(devices=jax.devices()[:4], shard_parameters="fsdp", fsdp_min_elements=1),
}


def test_a_sharded_model_evaluates_predicts_and_exports_as_a_whole_one(tmp_path):
    data = fakes.numbered(13)
    found = {}
    for layout in ("1 device", "tensor"):
        estimator = on(fakes.mlp, tmp_path / layout, MLP_LAYOUTS[layout])
        estimator.train(lambda: fakes.numbered(16))
        predictions = [example["output"] for example in estimator.predict(lambda: data)]
        found[layout] = estimator.evaluate(lambda: data), predictions
        path = estimator.export_saved_model(
            tmp_path / layout / "export", est.export.serving_input(data[0])
        )
        served = est.export.load(path)["serving_default"](data[0])
        np.testing.assert_allclose(served["output"], predictions, rtol=1e-5)

    assert found["tensor"][0] == pytest.approx(found["1 device"][0], rel=1e-5)
    np.testing.assert_allclose(found["tensor"][1], found["1 device"][1], rtol=1e-5)


@pytest.mark.parametrize("later", ["2 devices", "1 device", "tensor"])
def test_a_checkpoint_goes_on_on_other_devices(tmp_path, later):
    data = fakes.dataset(40).repeat()
    unbroken, resumed = fakes.LoopLog(), fakes.LoopLog()
    split = MLP_LAYOUTS["fsdp"]
    on(fakes.mlp, tmp_path / "unbroken", split).train(lambda: data, [unbroken], steps=10)
    before = on(fakes.mlp, tmp_path / "run", split)
    state = final_state(before, lambda: data, steps=5)

    after = on(fakes.mlp, tmp_path / "run", MLP_LAYOUTS[later])

    names = after.get_variable_names()  # on no device at all
    assert names == sorted(name for name in state if name.startswith("params/"))
    for name in names:
        np.testing.assert_array_equal(after.get_variable_value(name), state[name])
    after.train(lambda: data, [resumed], steps=5)
    np.testing.assert_allclose(resumed.losses, unbroken.losses[5:], rtol=1e-6)
