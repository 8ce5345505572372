"""What is wrong is said before anything is compiled; what fails reaches the caller as itself."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.fakes import config, dataset, mlp, numbered

pytestmark = pytest.mark.usefixtures("no_new_threads")


class Mine(Exception):
    """An error that nothing but a test raises."""


def make(model_dir: Path, model_fn: Any = mlp, **settings: Any) -> est.Estimator:
    settings = {"iterations_per_loop": 4, "save_checkpoints_steps": 4, **settings}
    return est.Estimator(model_fn, model_dir, config(**settings), train_batch_size=2)


def endless():
    return dataset(20).repeat()


# Arguments of train.


@pytest.mark.parametrize("name", ["steps", "max_steps"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-1, ValueError), (2.5, TypeError), ("3", TypeError), (True, TypeError)],
)
def test_counts_that_are_no_positive_ints_are_refused(
    tmp_path, name, value, error, nothing_compiled
):
    with pytest.raises(error, match=f"{name} must be a positive int, got {value!r}"):
        make(tmp_path).train(lambda: pytest.fail("input_fn was called"), **{name: value})


def test_steps_and_max_steps_together_are_refused(tmp_path, nothing_compiled):
    with pytest.raises(ValueError, match=r"steps=3 and max_steps=5 are both given.*one of them"):
        make(tmp_path).train(endless, steps=3, max_steps=5)


@pytest.mark.parametrize("sizes", [{}, {"predict_batch_size": 8}])
def test_a_missing_batch_size_is_named_before_the_input_is_opened(
    tmp_path, sizes, nothing_compiled
):
    estimator = est.Estimator(mlp, tmp_path, config(), **sizes)
    with pytest.raises(ValueError, match=r"train_batch_size is missing.*train_batch_size="):
        estimator.train(lambda: pytest.fail("input_fn was called"))


def test_a_batch_size_that_does_not_divide_names_its_neighbours(tmp_path):
    with pytest.raises(ValueError, match=r"train_batch_size=20 .*8 replicas.*Use 16 or 24"):
        est.Estimator(mlp, tmp_path, config(devices=8), train_batch_size=20)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [([est.hooks.NanHook], "NanHook"), ([lambda view: None], "Hook")],
    ids=["class", "function"],
)
def test_what_is_no_hook_is_refused(tmp_path, hooks, words, nothing_compiled):
    with pytest.raises(TypeError, match=f"hooks must be.*{words}"):
        make(tmp_path).train(endless, hooks=hooks)


def test_a_single_hook_without_a_list_is_refused_with_the_name_of_the_argument(tmp_path):
    with pytest.raises(TypeError, match="hooks must be"):
        make(tmp_path).train(endless, hooks=est.hooks.NanHook())  # pyright: ignore


def test_a_listener_without_its_methods_is_refused(tmp_path, nothing_compiled):
    with pytest.raises(TypeError, match=r"saving_listeners.*before_save.*after_save"):
        make(tmp_path).train(endless, saving_listeners=[object()])


@pytest.mark.parametrize("devices", [["cpu"], [0, 1], 2, "cpu"], ids=str)
def test_devices_that_are_none_are_refused_by_name(devices):
    with pytest.raises((TypeError, ValueError), match="devices"):
        est.DeviceConfig(devices=devices)


def test_a_device_that_is_given_twice_is_refused():
    with pytest.raises(ValueError, match=r"devices.*(twice|once)"):
        est.DeviceConfig(devices=jax.devices()[:1] * 2)


# What model_fn returns.


def spec_of(**attributes: Any) -> Callable[..., Any]:
    """Returns a model_fn of one layer whose spec has `attributes`; functions get the loss."""

    def model_fn(features, labels, mode):
        loss = nn.Dense(1)(features["x"])[:, 0] ** 2
        given = {"loss": loss, "optimizer": optax.sgd(0.1)}
        for name, value in attributes.items():
            given[name] = value(loss) if callable(value) else value
        return est.EstimatorSpec(mode, **given)

    return model_fn


BAD_SPECS = {
    "nothing": (lambda features: None, TypeError, "must return an EstimatorSpec, got NoneType"),
    "a tuple": (lambda features: (1, 2), TypeError, "must return an EstimatorSpec, got tuple"),
    "no loss": (spec_of(loss=None), ValueError, "no loss in mode ModeKeys.TRAIN.*loss="),
    "no optimizer": (spec_of(optimizer=None), ValueError, "no optimizer.*optax"),
    "another mode": (
        lambda features: est.EstimatorSpec(est.ModeKeys.PREDICT, predictions=features["x"]),
        ValueError,
        "mode 'train' but returned .* 'infer'",
    ),
    "loss of a matrix": (
        spec_of(loss=lambda loss: jnp.stack([loss, loss], 1)),
        ValueError,
        r"loss has the shape \[2, 2\]; expected \[2\]",
    ),
    "integer loss": (
        spec_of(loss=lambda loss: loss.astype(jnp.int32)),
        TypeError,
        "loss must be a floating point array, got int32",
    ),
    "loss that is a Python number": (spec_of(loss=0.5), TypeError, "loss must be .* got float"),
    "no optax optimizer": (spec_of(optimizer="adam"), TypeError, "optimizer must be an optax"),
    "scalar metric": (
        spec_of(metrics=lambda loss: {"half": loss.mean()}),
        ValueError,
        r"metrics\['half'\] has the shape \[\]; expected \[2\]",
    ),
    "reserved metric": (
        spec_of(metrics=lambda loss: {"loss": loss}),
        ValueError,
        "must not use the names.*loss",
    ),
    "no parameters": (
        lambda features: est.EstimatorSpec(
            est.ModeKeys.TRAIN, loss=features["x"][:, 0], optimizer=optax.sgd(0.1)
        ),
        ValueError,
        "made no parameters",
    ),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_a_bad_spec_is_refused_with_words(tmp_path, name, nothing_compiled):
    model_fn, error, words = BAD_SPECS[name]
    estimator = make(tmp_path, model_fn)
    with pytest.raises(error, match=words):
        estimator.train(lambda: numbered(8))
    assert not (tmp_path / "checkpoints").exists()


def test_a_model_fn_with_an_unknown_argument_is_refused_by_the_constructor(tmp_path):
    def model_fn(features, labels, mode, learning_rate): ...

    with pytest.raises(TypeError, match=r"learning_rate.*features"):
        make(tmp_path, model_fn)


def test_an_input_fn_with_an_unknown_argument_is_refused(tmp_path, nothing_compiled):
    with pytest.raises(TypeError, match=r"input_fn.*split.*params"):
        make(tmp_path).train(lambda split: numbered(8))


class Growing(nn.Module):
    """A model with a state that doubles in length whenever it is called."""

    @nn.compact
    def __call__(self, x):
        seen = self.variable("counts", "seen", jnp.zeros, 2)
        if not self.is_initializing():
            seen.value = jnp.concatenate([seen.value, seen.value])
        return nn.Dense(1)(x)


def test_a_model_whose_state_changes_shape_is_refused_by_the_name_of_the_state(tmp_path):
    def model_fn(features, mode, model):
        loss = model(features["x"])[:, 0] ** 2
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.1))

    estimator = est.Estimator(model_fn, tmp_path, config(), train_batch_size=2, model=Growing())
    with pytest.raises(TypeError, match=r"seen.* from float32\[2\] to float32\[4\]"):
        estimator.train(lambda: numbered(8))


# Errors of the user's own code, after 8 good steps and a checkpoint at 4 and 8.


def broken_generator(error: BaseException) -> Any:
    def input_fn():
        yield from list(fakes.batches(16, 2))
        raise error

    return input_fn, mlp, []


def broken_host_call(error: BaseException) -> Any:
    def function(loss, step):
        if step == 9:
            raise error

    def model_fn(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, params, context)
        return est.EstimatorSpec(
            mode,
            loss=spec.loss,
            optimizer=optax.sgd(0.05),
            host_call=(function, {"loss": spec.loss}),
        )

    return endless, model_fn, []


def broken_hook(method: str) -> Any:
    def build(error: BaseException) -> Any:
        class Broken(est.hooks.Hook):
            def __init__(self):
                self.step = 0

            def before_loop(self, step):
                self.step = step
                if method == "before_loop" and step == 8:
                    raise error

            def next_step(self, step):
                if method == "next_step" and step == 8:
                    raise error
                return None

            def after_loop(self, view):
                if method == "after_loop" and view.step == 12:
                    raise error

            def before_save(self, view):
                if method == "before_save" and view.step == 12:
                    raise error

            def after_save(self, step, path):
                if method == "after_save" and step == 8:
                    raise error

        return endless, mlp, [Broken()]

    return build


LATE = {
    "a generator": broken_generator,
    "host_call": broken_host_call,
    "a hook's next_step": broken_hook("next_step"),
    "a hook's before_loop": broken_hook("before_loop"),
    "a hook's after_loop": broken_hook("after_loop"),
    "a hook's before_save": broken_hook("before_save"),
    "a hook's after_save": broken_hook("after_save"),
}


@pytest.mark.parametrize("where", LATE)
@pytest.mark.parametrize("kind", [Mine, StopIteration, KeyboardInterrupt])
def test_an_error_reaches_the_caller_as_itself_and_the_last_checkpoint_is_whole(
    tmp_path, where, kind
):
    if where == "a generator" and kind is StopIteration:
        pytest.skip("Python itself turns a StopIteration in a generator into a RuntimeError")
    error = kind("mine")
    input_fn, model_fn, hooks = LATE[where](error)
    estimator = make(tmp_path, model_fn)
    # The first checkpoint is on disk before anything can go wrong.
    make(tmp_path).train(input_fn, max_steps=4)
    with pytest.raises(kind) as caught:
        estimator.train(input_fn, hooks=hooks, max_steps=100)
    assert caught.value is error
    names = [entry.name for entry in caught.traceback]
    assert any(name in ("input_fn", "function", *vars(est.hooks.Hook)) for name in names)
    steps = fakes.saved_steps(estimator)
    # A generator may fail while batches before it wait, a host_call when later ones have run.
    assert steps in ([4], [4, 8], [4, 8, 12])
    if "hook" in where:
        assert steps == [4, 8]
    leftovers = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert leftovers == {str(step) for step in steps}
    make(tmp_path).train(endless, steps=1)
    assert fakes.latest_step(estimator) == steps[-1] + 1


@pytest.mark.parametrize("method", ["begin", "end"])
def test_an_error_where_a_hook_begins_or_ends_reaches_the_caller(tmp_path, method):
    error = Mine()

    def fail(_):
        raise error

    hook = est.hooks.LambdaHook(**{method: fail})
    with pytest.raises(Mine) as caught:
        make(tmp_path).train(endless, hooks=[hook], max_steps=6)
    assert caught.value is error


@pytest.mark.parametrize("where", ["input_fn", "model_fn", "listener"])
def test_an_early_error_reaches_the_caller_as_itself(tmp_path, where):
    error = Mine()

    def fail(*arguments):
        raise error

    class Listener:
        def before_save(self, view):
            fail()

        def after_save(self, step, path): ...

    def model_fn(features):
        fail()

    with pytest.raises(Mine) as caught:
        make(tmp_path, model_fn if where == "model_fn" else mlp).train(
            (lambda: fail()) if where == "input_fn" else endless,
            saving_listeners=[Listener()] if where == "listener" else None,
        )
    assert caught.value is error
    assert not (tmp_path / "checkpoints" / "4").exists()


def test_the_third_batch_of_a_generator_fails_the_run(tmp_path):
    def input_fn():
        for number, batch in enumerate(fakes.batches(20, 2)):
            if number == 2:
                raise ValueError("bad record 17")
            yield batch

    with pytest.raises(ValueError, match=r"^bad record 17$"):
        make(tmp_path).train(input_fn, max_steps=100)


def test_a_stop_iteration_in_a_map_function_is_not_the_end_of_the_data(tmp_path):
    def decode(batch):
        if batch[0]["id"][0] == 4:
            raise StopIteration("of the user")
        return batch

    with pytest.raises(RuntimeError, match="StopIteration"):
        make(tmp_path).train(lambda: map(decode, fakes.batches(10, 2)), max_steps=100)


def test_a_batch_that_differs_from_the_first_is_refused(tmp_path):
    def input_fn():
        yield {"x": np.zeros((2, 4), np.float32), "id": np.arange(2)}, np.zeros(2, np.float32)
        yield {"x": np.zeros((2, 5), np.float32), "id": np.arange(2)}, np.zeros(2, np.float32)

    with pytest.raises(ValueError, match=r"features\['x'\] of batch 1.*\[batch, 4\].*\[2, 5\]"):
        make(tmp_path).train(input_fn)


def test_an_input_without_batches_is_refused(tmp_path, nothing_compiled):
    for input_fn in (lambda: numbered(0), lambda: iter(()), lambda: []):
        with pytest.raises(ValueError, match="input_fn produced no batches"):
            make(tmp_path).train(input_fn)


@pytest.mark.parametrize("outcome", ["ends", "is stopped", "fails in model_fn", "fails in a hook"])
def test_a_generator_is_closed_however_the_run_ends(tmp_path, outcome):
    closed = []

    def input_fn():
        try:
            yield from fakes.batches(200, 2)
        finally:
            closed.append(True)

    def broken(features):
        raise Mine

    def fail(view):
        raise Mine

    model_fn = broken if outcome == "fails in model_fn" else mlp
    estimator = make(tmp_path, model_fn, save_checkpoints_steps=100)
    fails = outcome.startswith("fails")
    hooks = [est.hooks.LambdaHook(after_loop=fail)] if outcome == "fails in a hook" else []
    steps = None if outcome == "ends" else 10
    try:
        estimator.train(input_fn, hooks=hooks, steps=steps)
    except Mine:
        assert fails
    else:
        assert not fails
    assert closed == [True]


def test_an_endless_fast_input_is_read_only_so_far_ahead(tmp_path):
    read = 0

    def input_fn():
        nonlocal read
        for batch in fakes.batches(2000, 2):
            read += 1
            yield batch

    make(tmp_path).train(input_fn, max_steps=10)
    assert read == 10
    estimator, read = make(tmp_path / "stopped"), 0
    estimator.train(input_fn, hooks=[est.hooks.StopAtStepHook(num_steps=4)])
    assert read <= 4 * (1 + 2 + 2)  # in use, waiting, being put and being filled


def test_every_hook_that_began_hears_of_the_error_and_none_of_the_end(tmp_path):
    heard: list[Any] = []

    class Listening(est.hooks.Hook):
        def end(self, view):
            heard.append("end")

        def on_error(self, error):
            heard.append(error)

    error = Mine()

    def fail(view):
        raise error

    hooks = [Listening(), est.hooks.LambdaHook(after_loop=fail), Listening()]
    with pytest.raises(Mine):
        make(tmp_path).train(endless, hooks=hooks, max_steps=8)
    assert heard == [error, error]
