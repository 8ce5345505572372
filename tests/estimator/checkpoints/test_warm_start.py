"""A run that begins takes variables from the checkpoint of another, once."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from tests import fakes

KEEPS_FIRST_PARAMS = optax.GradientTransformation(
    init=lambda params: {"first": params},
    update=lambda updates, state, params=None: (updates, state),
)


def counting(features, labels, mode, params):
    """A model_fn with a layer for each of `sizes`, all weights of which count the updates."""
    total = 0.0
    for name, size in params.get("sizes", {"a": 3}).items():
        layer = nn.Dense(size, use_bias=False, kernel_init=nn.initializers.zeros, name=name)
        layer(jnp.zeros((1, 2)))
        total += layer.variables["params"]["kernel"].sum()
    optimizer = params.get("optimizer", optax.sgd(1.0))
    return est.EstimatorSpec(mode, loss=-total + 0.0 * labels.sum(), optimizer=optimizer)


def make(model_dir, warm_start_from=None, **params):
    return est.Estimator(
        counting,
        model_dir,
        fakes.config(),
        params,
        train_batch_size=2,
        warm_start_from=warm_start_from,
    )


def trained(model_dir, steps, warm_start_from=None, **params):
    estimator = make(model_dir, warm_start_from, **params)
    return estimator.train(lambda: fakes.dataset(20).repeat(), steps=steps)


def weights(estimator, name="a"):
    """Returns the number that all weights of a layer have."""
    (value,) = np.unique(estimator.get_variable_value(f"params/{name}/kernel"))
    return value


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A model_dir in which all weights are 1."""
    folder = tmp_path_factory.mktemp("source")
    trained(folder, 1)
    return folder


@pytest.mark.parametrize("is_path", [False, True], ids=["model_dir", "checkpoint"])
def test_a_warm_start_happens_once_at_step_0(tmp_path, source, caplog, is_path):
    origin = source / "checkpoints" / "1" if is_path else source
    with caplog.at_level("INFO", "estimator"):
        first = trained(tmp_path, 10, origin)
    assert (weights(first), fakes.latest_step(first)) == (11, 10)
    assert f"begin as they are in {source}" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "estimator"):
        second = trained(tmp_path, 10, origin)
    assert (weights(second), fakes.latest_step(second)) == (21, 20)
    assert f"Nothing is taken from {origin}: training goes on from" in caplog.text


def test_a_layer_that_the_checkpoint_has_not_is_initialised_and_named(tmp_path, source, caplog):
    with caplog.at_level("INFO", "estimator"):
        estimator = trained(tmp_path, 2, source, sizes={"a": 3, "b": 4})
    assert (weights(estimator, "a"), weights(estimator, "b")) == (3, 2)
    assert "has not params/b/kernel" in caplog.text


def test_a_layer_of_another_size_is_an_error_before_anything_is_compiled(
    tmp_path, source, nothing_compiled
):
    with pytest.raises(est.CheckpointMismatchError) as caught:
        trained(tmp_path, 1, source, sizes={"a": 5})
    for words in ("params/a/kernel", "[2, 3]", "[2, 5]", "exclude", str(source)):
        assert words in str(caught.value)


def test_a_layer_of_another_size_can_be_left_out(tmp_path, source):
    both = tmp_path / "both"
    trained(both, 1, sizes={"a": 3, "head": 4})
    warm = est.WarmStart(checkpoint=both, exclude="params/head/.*")
    estimator = trained(tmp_path / "new", 2, warm, sizes={"a": 3, "head": 5})
    assert (weights(estimator, "a"), weights(estimator, "head")) == (3, 2)


def test_only_what_is_included_is_taken(tmp_path):
    trained(tmp_path / "both", 1, sizes={"a": 3, "b": 3})
    warm = est.WarmStart(checkpoint=tmp_path / "both", include="params/b/.*")
    estimator = trained(tmp_path / "new", 2, warm, sizes={"a": 3, "b": 3})
    assert (weights(estimator, "a"), weights(estimator, "b")) == (2, 3)


def test_layers_may_have_other_names_and_begin_as_one(tmp_path, source):
    warm = est.WarmStart(checkpoint=source, rename={"params/b": "params/a", "params/c": "params/a"})
    estimator = trained(tmp_path, 2, warm, sizes={"b": 3, "c": 3})
    assert (weights(estimator, "b"), weights(estimator, "c")) == (3, 3)


def test_a_new_name_that_is_not_there_is_an_error_that_lists_those_that_are(tmp_path, source):
    warm = est.WarmStart(checkpoint=source, rename={"params/a": "params/z"})
    with pytest.raises(est.CheckpointMismatchError, match=r"params/z/kernel.*params/a/kernel"):
        trained(tmp_path, 1, warm)


def test_a_checkpoint_without_one_of_the_variables_is_an_error(tmp_path, source):
    with pytest.raises(est.CheckpointMismatchError, match="none of the model's variables"):
        trained(tmp_path, 1, source, sizes={"z": 3})


def test_patterns_that_leave_nothing_are_an_error(tmp_path, source):
    warm = est.WarmStart(checkpoint=source, include="encoder/.*")
    with pytest.raises(ValueError, match=r"include='encoder/\.\*'.*params/a/kernel"):
        trained(tmp_path, 1, warm)


def test_an_optimizer_begins_with_the_parameters_that_were_taken(tmp_path, source):
    estimator = make(tmp_path, source, optimizer=KEEPS_FIRST_PARAMS)
    state = fakes.final_state(estimator, lambda: fakes.numbered(2))
    np.testing.assert_array_equal(state["opt_state/first/a/kernel"], np.ones((2, 3)))


def test_a_path_without_a_checkpoint_is_an_error_before_anything_is_compiled(
    tmp_path, nothing_compiled
):
    with pytest.raises(FileNotFoundError, match="nope"):
        trained(tmp_path, 1, tmp_path / "nope")


@pytest.mark.parametrize("field", ["include", "exclude"])
def test_what_is_no_pattern_is_refused_when_it_is_given(field):
    with pytest.raises(ValueError, match=rf"{field}='\(' is no regular expression"):
        est.WarmStart(checkpoint="x", **{field: "("})


def test_what_is_no_path_is_refused_when_it_is_given(tmp_path):
    with pytest.raises(TypeError, match="warm_start_from must be the path"):
        make(tmp_path, 7)
