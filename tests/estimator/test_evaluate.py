"""evaluate: every example counts once, whatever the batches and the devices."""

from __future__ import annotations

import logging
from pathlib import Path

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from tests.events import scalars_in

ROWS = 19
_RANDOM = np.random.default_rng(7)
X = _RANDOM.normal(size=(ROWS, 3)).astype(np.float32)
Y = _RANDOM.normal(size=ROWS).astype(np.float32)


pytestmark = pytest.mark.usefixtures("no_new_threads")


@flax.struct.dataclass
class LargestError:
    """A mergeable metric as clu has them: the largest absolute error, and how many rows."""

    largest: jax.Array
    rows: jax.Array

    @classmethod
    def empty(cls):
        return cls(largest=jnp.float32(-1.0), rows=jnp.int32(0))

    @classmethod
    def of(cls, errors):
        return cls(largest=jnp.abs(errors).max(), rows=jnp.int32(errors.shape[0]))

    def merge(self, other):
        return type(self)(
            largest=jnp.maximum(self.largest, other.largest), rows=self.rows + other.rows
        )

    def compute(self):
        return jnp.stack([self.largest, self.rows.astype(jnp.float32)])


class AllErrors:
    """A mergeable object of a metric_fn: keeps what it saw."""

    def __init__(self, errors):
        self.errors = list(errors)

    def merge(self, other):
        return AllErrors(self.errors + other.errors)

    def compute(self):
        return np.asarray(self.errors)


def regression(features, labels, mode, params):
    outputs = nn.Dense(1)(features["x"])[:, 0]
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"y": outputs})
    errors = outputs - labels
    loss = errors**2
    return est.EstimatorSpec(
        mode,
        loss=loss.mean() if params.get("scalar_loss") else loss,
        optimizer=optax.sgd(0.1),
        metrics={"close": jnp.abs(errors) < 1.0},
    )


def table_model(features, mode):
    """Reports what is in the features: a model without variables."""
    return est.EstimatorSpec(mode, loss=features["loss"], optimizer=optax.sgd(1.0))


def estimator(model_fn, model_dir, *, devices=1, batch_size=4, params=None, **config):
    return est.Estimator(
        model_fn,
        model_dir=model_dir,
        eval_batch_size=batch_size,
        train_batch_size=batch_size,
        params=params,
        config=est.RunConfig(
            devices=est.DeviceConfig(devices=jax.devices()[:devices]),
            save_summary_steps=None,
            log_step_count_steps=None,
            **config,
        ),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with checkpoints of `regression` at 2 and 5."""
    model_dir = tmp_path_factory.mktemp("trained")
    trainer = estimator(regression, model_dir, save_checkpoints_steps=2)
    trainer.train(lambda: est.input_pipeline.Dataset.from_arrays(data()).repeat(), max_steps=5)
    return model_dir


@pytest.fixture(scope="module")
def expected(trained):
    return one_at_a_time(estimator(regression, trained))


def data(rows=ROWS):
    return {"x": X[:rows]}, Y[:rows]


def one_at_a_time(trained_estimator, rows=ROWS):
    """Loss and metrics over the first rows, in numpy, one example after the other."""
    kernel = trained_estimator.get_variable_value("params/Dense_0/kernel").astype(np.float64)
    bias = trained_estimator.get_variable_value("params/Dense_0/bias").astype(np.float64)
    errors = [float(x @ kernel[:, 0] + bias[0] - y) for x, y in zip(X[:rows], Y, strict=False)]
    return {
        "loss": sum(error * error for error in errors) / rows,
        "close": sum(abs(error) < 1.0 for error in errors) / rows,
        "largest": max(abs(error) for error in errors),
        "errors": errors,
    }


def warnings_of(caplog):
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


# Exact to the last example


@pytest.mark.parametrize("batch_size", range(1, 10))
@pytest.mark.parametrize("scalar_loss", [False, True])
def test_equals_one_example_at_a_time_for_every_batch_size(
    trained, expected, batch_size, scalar_loss
):
    evaluator = estimator(
        regression, trained, batch_size=batch_size, params={"scalar_loss": scalar_loss}
    )

    result = evaluator.evaluate(data)

    assert result == {
        "loss": pytest.approx(expected["loss"], rel=1e-5),
        "close": pytest.approx(expected["close"], abs=1e-12),
        "global_step": 5,
    }


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("scalar_loss", [False, True])
def test_equals_one_example_at_a_time_on_every_number_of_devices(
    trained, expected, devices, scalar_loss
):
    # The tail of 19 - 16 = 3 rows divides over none of 2, 4 and 8 devices.
    evaluator = estimator(
        regression, trained, devices=devices, batch_size=8, params={"scalar_loss": scalar_loss}
    )

    result = evaluator.evaluate(data)

    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert result["close"] == pytest.approx(expected["close"], abs=1e-12)


@pytest.mark.parametrize("iterations_per_loop", [1, 2, 100])
def test_does_not_depend_on_the_length_of_a_loop(trained, expected, iterations_per_loop):
    evaluator = estimator(regression, trained, iterations_per_loop=iterations_per_loop)

    assert evaluator.evaluate(data)["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize("scalar_loss", [False, True])
def test_partial_batches_in_the_middle_of_the_input_count_by_their_rows(
    trained, expected, scalar_loss
):
    def ragged():
        for start, stop in [(0, 3), (3, 7), (7, 8), (8, 12), (12, 16), (16, 19)]:
            yield {"x": X[start:stop]}, Y[start:stop]

    evaluator = estimator(regression, trained, params={"scalar_loss": scalar_loss})

    result = evaluator.evaluate(lambda: ragged())

    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("scalar", [False, True])
def test_a_smaller_last_batch_does_not_weigh_like_a_full_one(tmp_path, devices, scalar):
    def model_fn(features, mode):
        loss = features["loss"]
        return est.EstimatorSpec(mode, loss=loss.mean() if scalar else loss)

    # The mean of batch means 10 and 9 would be 9.5.
    losses = {"loss": np.array([8, 12, 9], np.float32)}

    result = estimator(model_fn, tmp_path, devices=devices, batch_size=2).evaluate(lambda: losses)

    assert result["loss"] == pytest.approx(29 / 3, rel=1e-6)


@pytest.mark.parametrize("devices, batch_size", [(1, 1), (1, 3), (1, 7), (4, 4), (4, 8)])
def test_three_rows_give_the_same_mean_at_every_batch_size(tmp_path, devices, batch_size):
    losses = {"loss": np.array([8, 12, 9], np.float32)}
    evaluator = estimator(table_model, tmp_path, devices=devices, batch_size=batch_size)

    assert evaluator.evaluate(lambda: losses)["loss"] == pytest.approx(29 / 3, rel=1e-6)


def counting(seen):
    """A model whose metric_fn writes down which rows it is given."""

    def metric_fn(rows):
        seen.extend(rows.tolist())
        return {"rows": np.float64(len(rows))}

    def model_fn(features, mode):
        return est.EstimatorSpec(
            mode,
            loss=features["loss"],
            eval_metrics=(metric_fn, {"rows": features["row"]}),
        )

    return model_fn


def numbered(rows):
    return {"row": np.arange(rows, dtype=np.int32), "loss": np.arange(rows, dtype=np.float32)}


@pytest.mark.parametrize("steps", [None, 2])
def test_fewer_rows_than_one_batch_are_evaluated(tmp_path, steps):
    seen = []

    result = estimator(counting(seen), tmp_path, batch_size=8).evaluate(
        lambda: numbered(5), steps=steps
    )

    assert seen == [0, 1, 2, 3, 4]
    assert result["loss"] == pytest.approx(2.0)


def test_a_tail_that_does_not_divide_over_the_devices_is_padded_and_masked(tmp_path):
    seen = []

    estimator(counting(seen), tmp_path, devices=4, batch_size=8).evaluate(lambda: numbered(19))

    assert seen == list(range(19))


@pytest.mark.parametrize("steps, rows", [(None, 13), (100, 13), (2, 8), (4, 13), (1, 4)])
def test_steps_bounds_the_batches_and_the_data_bounds_the_steps(tmp_path, caplog, steps, rows):
    seen = []

    result = estimator(counting(seen), tmp_path, batch_size=4).evaluate(
        lambda: numbered(13), steps=steps
    )

    assert seen == list(range(rows))
    assert result["loss"] == pytest.approx((rows - 1) / 2)
    short = [message for message in warnings_of(caplog) if "input ended after" in message]
    assert bool(short) == (steps == 100)
    if short:
        assert "4 of 100" in short[0]


def test_no_more_batches_are_taken_from_the_input_than_steps(tmp_path):
    taken = []

    def endless():
        row = 0
        while True:
            taken.append(row)
            yield {"loss": np.array([row], np.float32)}
            row += 1

    estimator(table_model, tmp_path, batch_size=1).evaluate(lambda: endless(), steps=3)

    assert len(taken) == 3


# Metrics


def test_a_mergeable_metric_is_merged_over_all_batches(trained, expected):
    def model_fn(features, labels, mode):
        loss = regression(features, labels, mode, {}).loss
        metrics = {"worst": LargestError.of(jnp.sqrt(loss)), "close": loss < 1.0}
        return est.EstimatorSpec(mode, loss=loss, metrics=metrics)

    for devices, batch_size in [(1, 4), (1, 19), (1, 5), (4, 8)]:
        evaluator = estimator(model_fn, trained, devices=devices, batch_size=batch_size)
        for _ in range(2):  # an evaluation uses up nothing that the next one needs
            result = evaluator.evaluate(data)
            largest, rows = result["worst"]
            assert rows == ROWS
            assert largest == pytest.approx(expected["largest"], rel=1e-5)
            assert result["close"] == pytest.approx(expected["close"], abs=1e-12)
            assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 4, 19])
def test_a_metric_fn_may_return_scalars_arrays_and_mergeable_objects(tmp_path, batch_size):
    values = np.arange(1.0, 20.0, dtype=np.float32)

    def metric_fn(value):
        assert isinstance(value, np.ndarray)
        return {
            "scalar": float(value.mean()),
            "array": value,
            "flags": value > 10,
            "merged": AllErrors(value),
        }

    def model_fn(features, mode):
        return est.EstimatorSpec(
            mode, loss=features["v"], eval_metrics=(metric_fn, [features["v"]])
        )

    result = estimator(model_fn, tmp_path, batch_size=batch_size).evaluate(lambda: {"v": values})

    assert result["scalar"] == pytest.approx(10.0)
    assert result["array"] == pytest.approx(10.0)
    assert result["flags"] == pytest.approx(9 / 19)
    np.testing.assert_array_equal(result["merged"], values)
    assert set(result) == {"scalar", "array", "flags", "merged", "loss", "global_step"}


def test_a_metric_fn_gets_nested_tensors_without_padding(tmp_path):
    shapes = []

    def metric_fn(both):
        shapes.append((both["a"].shape, both["b"][0].shape))
        return {}

    def model_fn(features, mode):
        tensors = {"both": {"a": features["v"], "b": [features["v"][:, None]]}}
        return est.EstimatorSpec(mode, loss=features["v"], eval_metrics=(metric_fn, tensors))

    values = {"v": np.zeros(7, np.float32)}
    estimator(model_fn, tmp_path, batch_size=4).evaluate(lambda: values)

    assert shapes == [((4,), (4, 1)), ((3,), (3, 1))]


@pytest.mark.parametrize("name", ["loss", "global_step", "close"])
def test_a_metric_fn_may_not_use_a_name_that_is_taken(tmp_path, name):
    def model_fn(features, mode):
        return est.EstimatorSpec(
            mode,
            loss=features["v"],
            metrics={"close": features["v"]},
            eval_metrics=(lambda value: {name: 1.0}, [features["v"]]),
        )

    with pytest.raises(ValueError, match=rf"\['{name}'\].*Rename"):
        estimator(model_fn, tmp_path).evaluate(lambda: {"v": np.zeros(4, np.float32)})


def test_a_scalar_among_the_tensors_of_eval_metrics_is_refused_by_name(tmp_path):
    def model_fn(features, mode):
        loss = features["x"].sum(-1)
        tensors = {"loss": loss.mean(), "logits": features["x"]}
        return est.EstimatorSpec(mode, loss=loss, eval_metrics=(lambda loss, logits: {}, tensors))

    evaluator = estimator(model_fn, tmp_path, devices=4, batch_size=8)
    with pytest.raises(ValueError) as caught:
        evaluator.evaluate(lambda: {"x": np.zeros((8, 10), np.float32)})

    message = str(caught.value)
    assert "eval_metrics['loss']" in message and "[8, ...]" in message and "jnp.full" in message


def test_a_metric_with_a_value_for_the_whole_batch_is_refused_by_name(tmp_path):
    def model_fn(features, mode):
        return est.EstimatorSpec(
            mode, loss=features["loss"], metrics={"mean_loss": features["loss"].mean()}
        )

    with pytest.raises(ValueError, match=r"metrics\['mean_loss'\].*\[\].*expected \[4\]"):
        estimator(model_fn, tmp_path).evaluate(lambda: numbered(4))


# Which variables


def test_evaluates_the_newest_checkpoint_unless_given_another(trained, expected):
    evaluator = estimator(regression, trained)
    second = trained / "checkpoints" / "2"

    newest = evaluator.evaluate(data)
    older = evaluator.evaluate(data, checkpoint_path=second)

    assert newest["global_step"] == 5
    assert newest["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert older["global_step"] == 2
    assert older["loss"] != pytest.approx(newest["loss"], rel=1e-3)


def test_a_checkpoint_may_be_given_by_a_relative_path(trained, monkeypatch):
    monkeypatch.chdir(trained)

    result = estimator(regression, trained).evaluate(data, checkpoint_path="checkpoints/2")

    assert result["global_step"] == 2


def test_a_checkpoint_that_is_not_there_is_an_error_before_the_input_is_asked(trained):
    called = []

    with pytest.raises(FileNotFoundError, match="nope"):
        estimator(regression, trained).evaluate(
            lambda: called.append(1) or data(), checkpoint_path="nope"
        )
    assert called == []


def test_a_checkpoint_of_another_model_is_an_error_that_names_both_shapes(trained):
    def wider(features, labels, mode):
        outputs = nn.Dense(2)(features["x"])[:, 0]
        return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2)

    with pytest.raises(ValueError, match=r"Dense_0/kernel: \[3, 1\] .*\[3, 2\]"):
        estimator(wider, trained).evaluate(data)


def test_without_a_checkpoint_the_initial_variables_are_evaluated_with_a_warning(tmp_path, caplog):
    evaluator = estimator(regression, tmp_path, seed=3)

    first, second = evaluator.evaluate(data), evaluator.evaluate(data)

    assert first == second
    assert first["global_step"] == 0
    # The kernel is not zero: then the loss would be the mean square of the labels.
    assert first["loss"] != pytest.approx(float((Y**2).mean()), rel=1e-3)
    assert any("no checkpoint" in message for message in warnings_of(caplog))


# Where the results go


def test_results_are_written_as_events_for_each_name(trained):
    evaluator = estimator(regression, trained)

    results = {
        "first": evaluator.evaluate(data, name="first", steps=4),
        "small": evaluator.evaluate(lambda: data(5), name="small"),
    }

    for name, result in results.items():
        assert Path(evaluator.eval_dir(name)) == trained / f"eval_{name}"
        events = scalars_in(evaluator.eval_dir(name))
        assert events == {
            (tag, 5): pytest.approx(result[tag], rel=1e-6) for tag in ("loss", "close")
        }
        (recorded,) = est.hooks.read_eval_results(evaluator.eval_dir(name))
        assert {**recorded.values, "global_step": recorded.global_step} == result
    small = one_at_a_time(evaluator, 5)
    assert results["small"]["loss"] == pytest.approx(small["loss"], rel=1e-5)


def test_results_without_a_name_are_written_to_eval(tmp_path):
    evaluator = estimator(table_model, tmp_path)

    evaluator.evaluate(lambda: numbered(9))

    assert Path(evaluator.eval_dir()) == tmp_path / "eval"
    assert scalars_in(tmp_path / "eval") == {("loss", 0): 4.0}


# No data


@pytest.mark.parametrize(
    "empty",
    [
        lambda: {"loss": np.zeros(0, np.float32)},
        lambda: iter([]),
        lambda: [],
        lambda: iter([{"loss": np.zeros(0, np.float32)}]),
    ],
    ids=["arrays without rows", "iterator", "list", "batches without rows"],
)
def test_an_input_without_rows_is_an_error_and_writes_no_summary(tmp_path, empty):
    evaluator = estimator(table_model, tmp_path)

    with pytest.raises(ValueError, match="input_fn produced no batches"):
        evaluator.evaluate(empty)

    assert not Path(evaluator.eval_dir()).exists()


@pytest.mark.parametrize(
    "empty",
    [lambda: {"loss": np.zeros(0, np.float32)}, lambda: iter([])],
    ids=["arrays without rows", "iterator"],
)
def test_training_on_an_input_without_rows_is_an_error(tmp_path, empty):
    with pytest.raises(ValueError, match="input_fn produced no batches"):
        estimator(table_model, tmp_path).train(empty, steps=1)


# Errors reach the caller as themselves

BOOM = ValueError("bad record 17")


def _raise_boom(*args, **kwargs):
    raise BOOM


def _failing_generator(good):
    for _ in range(good):
        yield numbered(4)
    raise BOOM


def _with_failing_metric(features, mode):
    return est.EstimatorSpec(
        mode, loss=features["loss"], eval_metrics=(_raise_boom, [features["loss"]])
    )


class _FailingHook(est.hooks.Hook):
    def __init__(self, method):
        setattr(self, method, _raise_boom)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda: (table_model, _raise_boom, None),
        lambda: (table_model, lambda: _failing_generator(0), None),
        lambda: (table_model, lambda: _failing_generator(1), None),
        lambda: (table_model, lambda: _failing_generator(2), None),
        lambda: (table_model, lambda: _failing_generator(40), None),
        lambda: (lambda features, mode: _raise_boom(), lambda: numbered(9), None),
        lambda: (_with_failing_metric, lambda: numbered(9), None),
        lambda: (table_model, lambda: numbered(9), "begin"),
        lambda: (table_model, lambda: numbered(9), "before_loop"),
        lambda: (table_model, lambda: numbered(9), "after_loop"),
        lambda: (table_model, lambda: numbered(9), "end"),
    ],
    ids=[
        "input_fn",
        "generator at once",
        "generator after 1",
        "generator after 2",
        "generator after 40",
        "model_fn",
        "metric_fn",
        "hook begin",
        "hook before_loop",
        "hook after_loop",
        "hook end",
    ],
)
def test_an_error_of_the_users_code_reaches_the_caller_as_itself(tmp_path, arrange):
    model_fn, input_fn, method = arrange()
    hooks = [] if method is None else [_FailingHook(method)]

    with pytest.raises(ValueError) as caught:
        estimator(model_fn, tmp_path, iterations_per_loop=4).evaluate(input_fn, hooks=hooks)

    assert caught.value is BOOM


@pytest.mark.parametrize("fails", ["input_fn", "metric_fn"])
def test_a_failed_evaluation_writes_no_summary(tmp_path, fails):
    if fails == "input_fn":
        evaluator = estimator(table_model, tmp_path)
        input_fn = lambda: _failing_generator(2)  # noqa: E731
    else:
        evaluator = estimator(_with_failing_metric, tmp_path)
        input_fn = lambda: numbered(9)  # noqa: E731

    with pytest.raises(ValueError):
        evaluator.evaluate(input_fn)

    assert not Path(evaluator.eval_dir()).exists()


def test_an_evaluation_after_a_failed_one_is_as_if_it_had_not_been(tmp_path):
    evaluator = estimator(table_model, tmp_path)
    with pytest.raises(ValueError):
        evaluator.evaluate(lambda: _failing_generator(2))

    assert evaluator.evaluate(lambda: numbered(9))["loss"] == pytest.approx(4.0)


@pytest.mark.parametrize("returned", [None, 3.0, [("a", 1.0)]])
def test_a_metric_fn_that_returns_no_dict_is_an_error(tmp_path, returned):
    def model_fn(features, mode):
        return est.EstimatorSpec(
            mode, loss=features["loss"], eval_metrics=(lambda x: returned, [features["loss"]])
        )

    with pytest.raises(TypeError, match=f"must return a dict, got {type(returned).__name__}"):
        estimator(model_fn, tmp_path).evaluate(lambda: numbered(5))


# Hooks


class Diary(est.hooks.Hook):
    """Writes down what it is called with, under a name, in a common book."""

    def __init__(self, name, book):
        self.name, self.book = name, book
        self.views = []

    def begin(self, context):
        self.context = context
        self.book.append((self.name, "begin"))

    def before_loop(self, step):
        self.book.append((self.name, "before_loop", step))

    def after_loop(self, view):
        self.views.append(view)
        self.book.append((self.name, "after_loop", view.before, view.step))

    def end(self, view):
        self.book.append((self.name, "end", view.step))

    def on_error(self, error):
        self.book.append((self.name, "on_error", error))


def test_hooks_are_called_in_order_and_shown_every_loop(tmp_path):
    book = []
    hooks = [Diary("a", book), Diary("b", book)]

    estimator(table_model, tmp_path, iterations_per_loop=2).evaluate(
        lambda: numbered(19), hooks=hooks
    )

    steps = [("begin",)]
    for before, after in [(0, 2), (2, 4), (4, 5)]:
        steps += [("before_loop", before), ("after_loop", before, after)]
    steps += [("end", 5)]
    assert book == [(name, *step) for step in steps for name in "ab"]
    assert hooks[0].context.mode == "eval"
    assert hooks[0].context.batch_size == 4
    assert [view.examples for view in hooks[0].views] == [8, 8, 3]
    losses = np.concatenate([view.losses for view in hooks[0].views])
    np.testing.assert_allclose(losses, [1.5, 5.5, 9.5, 13.5, 17.0])


def test_hooks_are_shown_the_variables_that_are_evaluated(trained):
    diary = Diary("a", [])
    evaluator = estimator(regression, trained)

    evaluator.evaluate(data, hooks=[diary])

    kernel = diary.views[0].state()["params"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(kernel, evaluator.get_variable_value("params/Dense_0/kernel"))


def test_hooks_are_told_how_long_a_loop_took(tmp_path):
    diary = Diary("a", [])

    estimator(table_model, tmp_path).evaluate(lambda: numbered(9), hooks=[diary])

    assert all(view.elapsed_secs > 0 for view in diary.views)


def test_hooks_hear_of_an_error_instead_of_the_end(tmp_path):
    book = []

    with pytest.raises(ValueError):
        estimator(table_model, tmp_path, iterations_per_loop=1).evaluate(
            lambda: _failing_generator(1), hooks=[Diary("a", book)]
        )

    assert book[0] == ("a", "begin")
    assert book[-1] == ("a", "on_error", BOOM)
    assert "end" not in [entry[1] for entry in book]


def test_a_hook_may_stop_an_evaluation_at_an_exact_batch(tmp_path):
    seen = []

    result = estimator(counting(seen), tmp_path).evaluate(
        lambda: numbered(40), hooks=[est.hooks.StopAtStepHook(num_steps=2)]
    )

    assert seen == list(range(8))
    assert result["loss"] == pytest.approx(3.5)


# Bad arguments


@pytest.mark.parametrize("steps, error", [(0, ValueError), (-1, ValueError), (2.5, TypeError)])
def test_steps_must_be_a_positive_whole_number(tmp_path, steps, error):
    called = []

    with pytest.raises(error, match=f"steps must be a positive int, got {steps}"):
        estimator(table_model, tmp_path).evaluate(lambda: called.append(1), steps=steps)
    assert called == []


def test_a_missing_batch_size_is_named_before_the_input_is_asked(tmp_path):
    called = []
    evaluator = est.Estimator(table_model, model_dir=tmp_path, train_batch_size=8)

    with pytest.raises(ValueError, match="eval_batch_size is missing"):
        evaluator.evaluate(lambda: called.append(1))
    assert called == []


@pytest.mark.parametrize("hooks", [est.hooks.Hook(), [est.hooks.Hook], ["hook"]])
def test_hooks_must_be_a_list_of_hooks(tmp_path, hooks):
    with pytest.raises(TypeError, match="hooks must be"):
        estimator(table_model, tmp_path).evaluate(lambda: numbered(4), hooks=hooks)
