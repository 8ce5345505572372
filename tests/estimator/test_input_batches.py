"""What an input_fn may return, and the words for what it may not."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from tests.fakes import threads_left

Features = collections.namedtuple("Features", "a b")

pytestmark = pytest.mark.usefixtures("no_new_threads")


@contextlib.contextmanager
def compilations():
    """Yields a list that gets an entry for every program that is compiled in the body."""
    events = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


class Summing:
    """A model_fn that sums all leaves of features and labels, and remembers its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, features, labels, mode):
        self.calls.append((features, labels))
        leaves = jax.tree.leaves((features, labels))
        sums = sum(jnp.asarray(x, jnp.float32).reshape(x.shape[0], -1).sum(1) for x in leaves)
        return est.EstimatorSpec(
            mode, loss=sums, predictions={"sum": sums}, optimizer=optax.sgd(0.1)
        )


def estimator(model_fn, model_dir, batch_size=4, params=None):
    return est.Estimator(
        model_fn,
        model_dir=model_dir,
        params=params,
        train_batch_size=batch_size,
        eval_batch_size=batch_size,
        predict_batch_size=batch_size,
        config=est.RunConfig(devices=est.DeviceConfig(devices=jax.devices()[:1])),
    )


def floats(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# Structures


@pytest.mark.parametrize(
    "data, total",
    [
        (lambda: floats(6), 15),
        (lambda: {"a": floats(6), "b": {"c": floats(6, 2)}}, 15 + 66),
        (lambda: ({"a": floats(6)}, floats(6)), 30),
        (lambda: ((floats(6), floats(6, 2)), floats(6)), 15 + 66 + 15),
        (lambda: Features(floats(6), floats(6)), 30),
        (lambda: (Features(floats(6), {"x": floats(6)}), {"y": floats(6)}), 45),
        (lambda: (floats(6), floats(6), floats(6)), 45),
        (lambda: {"a": jnp.arange(6.0)}, 15),
        (lambda: {"a": np.arange(6, dtype=np.int64), "b": np.ones(6, bool)}, 15 + 6),
        (lambda: {"a": floats(6).astype(np.float64), "b": floats(6).astype(np.float16)}, 30),
    ],
    ids=[
        "array",
        "nested dict",
        "with labels",
        "tuple with labels",
        "namedtuple",
        "namedtuple with labels",
        "tuple of three",
        "jax array",
        "int64 and bool",
        "float64 and float16",
    ],
)
@pytest.mark.parametrize("form", ["arrays", "dataset", "generator", "list", "function"])
def test_every_structure_is_read_in_every_form(tmp_path, data, total, form):
    def cut(start, stop):
        return jax.tree.map(lambda leaf: leaf[start:stop], data())

    def input_fn():
        if form == "arrays":
            return data()
        if form == "dataset":
            return est.input_pipeline.Dataset.from_arrays(data()).batch(4)
        if form == "list":
            return [cut(0, 4), cut(4, 6)]
        if form == "function":
            return lambda: iter([cut(0, 4), cut(4, 6)])
        return (cut(start, start + 4) for start in (0, 4))

    model_fn = Summing()

    result = estimator(model_fn, tmp_path).evaluate(input_fn)

    assert result["loss"] * 6 == pytest.approx(total)
    features, labels = model_fn.calls[0]
    wanted = data()
    wanted = wanted if type(wanted) is tuple and len(wanted) == 2 else (wanted, None)
    assert jax.tree.structure((features, labels)) == jax.tree.structure(wanted)


def test_a_dataset_shuffles_repeats_and_batches(tmp_path):
    data = est.input_pipeline.Dataset.from_arrays(floats(10)).shuffle(seed=1).repeat(2).batch(4)

    results = [
        float(result["sum"]) for result in estimator(Summing(), tmp_path).predict(lambda: data)
    ]

    assert len(results) == 20
    assert sorted(results[:10]) == sorted(results[10:]) == list(range(10))
    assert results[:10] != list(range(10))
    assert results[:10] != results[10:]


def test_an_input_fn_is_called_with_the_arguments_that_it_names(tmp_path):
    seen = {}

    def everything(params, mode, config, context):
        seen.update(params=params, mode=mode, config=config, context=context)
        return floats(3)

    runner = estimator(Summing(), tmp_path, params={"depth": 3})
    runner.evaluate(everything)

    assert seen["params"]["depth"] == 3
    assert seen["params"]["batch_size"] == 4
    assert seen["params"]["context"] is seen["context"]
    assert seen["mode"] == est.ModeKeys.EVAL
    assert seen["config"] is runner.config
    assert seen["context"].batch_size == 4
    assert seen["context"].num_replicas == 1
    assert runner.params == {"depth": 3}


@pytest.mark.parametrize(
    "input_fn",
    [
        lambda: floats(3),
        lambda params: floats(params["batch_size"]),
        lambda mode, other=5: floats(other),
        lambda **kwargs: floats(kwargs["params"]["batch_size"]),
        functools.partial(lambda rows, mode: floats(rows), 3),
    ],
    ids=["none", "params", "mode and a default", "any", "partial"],
)
def test_an_input_fn_may_name_any_of_them(tmp_path, input_fn):
    assert estimator(Summing(), tmp_path).evaluate(input_fn)["loss"] >= 0


def test_an_input_fn_with_an_unknown_argument_is_refused_by_name(tmp_path):
    with pytest.raises(TypeError, match=r"input_fn needs an argument 'path'.*params, mode"):
        estimator(Summing(), tmp_path).evaluate(lambda path: floats(3))


@pytest.mark.parametrize("input_fn", [None, 3, {"a": np.zeros(3)}])
def test_an_input_fn_must_be_a_function(tmp_path, input_fn):
    with pytest.raises(TypeError, match="input_fn must be a function"):
        estimator(Summing(), tmp_path).evaluate(input_fn)


# Bad input: refused with words before the model is even traced


def _ragged_batches():
    yield {"a": floats(4), "b": floats(3)}


REFUSED = {
    "nothing": (lambda: None, TypeError, ["input_fn returned", "NoneType", "Expected"]),
    "a number": (lambda: 7, TypeError, ["input_fn returned", "int", "Expected"]),
    "a string": (lambda: "path", TypeError, ["input_fn returned", "str", "Expected"]),
    "strings": (
        lambda: {"age": floats(3), "name": np.array(["a", "b", "c"])},
        ValueError,
        ["features['name']", "strings", "integer ids"],
    ),
    "objects": (
        lambda: {"age": floats(3), "name": np.array(["a", None, 3], object)},
        ValueError,
        ["features['name']", "object"],
    ),
    "string labels": (
        lambda: ({"age": floats(3)}, np.array(["a", "b", "c"])),
        ValueError,
        ["labels", "strings", "integer ids"],
    ),
    "strings in batches": (
        lambda: iter([{"age": floats(3), "name": np.array(["a", "b", "c"])}]),
        ValueError,
        ["features['name']", "strings", "integer ids"],
    ),
    "dates": (
        lambda: {"when": np.array(["2020-01-01"], "datetime64[D]")},
        ValueError,
        ["features['when']", "dates", "number"],
    ),
    "lengths differ": (
        lambda: {"a": floats(4), "b": floats(5)},
        ValueError,
        ["features['a'] has 4", "features['b'] has 5"],
    ),
    "labels of another length": (
        lambda: ({"a": floats(4)}, floats(5)),
        ValueError,
        ["features['a'] has 4", "labels has 5"],
    ),
    "lengths differ in a batch": (
        lambda: _ragged_batches(),
        ValueError,
        ["features['a'] has 4", "features['b'] has 3"],
    ),
    "a scalar": (
        lambda: {"a": floats(4), "b": np.float32(3)},
        ValueError,
        ["features['b'] is a scalar", "[batch, ...]"],
    ),
    "a scalar in a batch": (
        lambda: iter([{"a": floats(4), "b": 3.0}]),
        ValueError,
        ["features['b'] is a scalar", "[batch, ...]"],
    ),
    "no arrays": (lambda: {}, ValueError, ["no array"]),
    "no arrays in a batch": (lambda: iter([{}]), ValueError, ["no array"]),
    "labels alone": (lambda: ({}, floats(4)), ValueError, ["features", "no array"]),
    "a batch of None": (lambda: iter([None]), ValueError, ["no array"]),
    "a first batch that is too large": (
        lambda: iter([floats(5)]),
        ValueError,
        ["Batch 0", "5 examples", "batch_size=4", "params['batch_size']"],
    ),
    "another batch size": (
        lambda: est.input_pipeline.Dataset.from_arrays(floats(8)).batch(8),
        ValueError,
        ["batch(8)", "batch_size=4", "params['batch_size']"],
    ),
    "large integers": (
        lambda: {"id": np.array([1, 2**40])},
        ValueError,
        ["features['id']", str(2**40), "int32"],
    ),
}


# predict keeps such columns on the host, and yields them beside the predictions.
STAYS_ON_HOST = ("strings", "objects", "strings in batches", "dates")


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (call, what)
        for call in ("train", "evaluate", "predict")
        for what in REFUSED
        if not (call == "predict" and what in STAYS_ON_HOST)
    ],
)
def test_bad_input_is_refused_with_words_before_anything_is_compiled(tmp_path, what, call):
    input_fn, error, words = REFUSED[what]
    model_fn = Summing()
    runner = estimator(model_fn, tmp_path)
    jax.random.key(0)  # its small program is compiled once in a process

    with compilations() as compiled, pytest.raises(error) as caught:
        if call == "train":
            runner.train(input_fn, steps=1)
        elif call == "evaluate":
            runner.evaluate(input_fn)
        else:
            list(runner.predict(input_fn))

    for word in words:
        assert word in str(caught.value)
    assert model_fn.calls == []
    assert compiled == []


def test_predict_is_not_given_columns_of_the_host_alone(tmp_path):
    model_fn = Summing()
    input_fn, _, _ = REFUSED["dates"]
    with pytest.raises(ValueError, match=r"no array at all.*dates and objects stay on the host"):
        list(estimator(model_fn, tmp_path).predict(input_fn))
    assert model_fn.calls == []


LATER = {
    "structure": (
        {"a": floats(4), "c": floats(4, 2)},
        ["structure of batch 1", "'a'", "'b'", "'c'"],
    ),
    "labels": (
        ({"a": floats(4), "b": floats(4, 2)}, floats(4)),
        ["structure of batch 1", "labels"],
    ),
    "shape": (
        {"a": floats(4), "b": floats(4, 3)},
        ["features['b'] of batch 1", "[batch, 2]", "[4, 3]"],
    ),
    "dtype": (
        {"a": floats(4).astype(np.int32), "b": floats(4, 2)},
        ["features['a'] of batch 1", "float32", "int32"],
    ),
    "rows": ({"a": floats(3), "b": floats(4, 2)}, ["batch 1", "['a'] has 3", "['b'] has 4"]),
    "size": ({"a": floats(5), "b": floats(5, 2)}, ["Batch 1", "5 examples", "batch_size=4"]),
}


@pytest.mark.parametrize("what", LATER)
@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_a_batch_that_differs_from_the_first_is_refused_with_its_number(tmp_path, what, call):
    second, words = LATER[what]
    first = {"a": floats(4), "b": floats(4, 2)}
    runner = estimator(Summing(), tmp_path)

    with pytest.raises(ValueError) as caught:
        if call == "evaluate":
            runner.evaluate(lambda: iter([first, second]))
        else:
            list(runner.predict(lambda: iter([first, second])))

    for word in words:
        assert word in str(caught.value)


# StopIteration from the user's own code is no end of the data


def _stops_at_two(row):
    if row == 2:
        raise StopIteration
    return floats(1) + row


def _generator_that_stops():
    for row in range(5):
        yield _stops_at_two(row)


STOPPING = {
    "map": lambda: map(_stops_at_two, range(5)),
    "filter": lambda: filter(lambda x: _stops_at_two(int(x[0])) is not None, _five()),
    "generator": lambda: _generator_that_stops(),
    "islice of map": lambda: itertools.islice(map(_stops_at_two, range(5)), 5),
    "map of map": lambda: map(lambda x: x, map(_stops_at_two, range(5))),
    "starmap": lambda: itertools.starmap(_stops_at_two, [(i,) for i in range(5)]),
    "zip": lambda: zip(map(_stops_at_two, range(5)), _five(), strict=False),
    "zip, the second": lambda: zip(_five(), map(_stops_at_two, range(5)), strict=False),
}


def _five():
    return [floats(1) + row for row in range(5)]


@pytest.mark.parametrize("form", STOPPING)
@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_a_stop_iteration_of_the_users_function_is_an_error(tmp_path, form, call):
    runner = estimator(Summing(), tmp_path, batch_size=1)

    with pytest.raises(RuntimeError, match="StopIteration"):
        if call == "evaluate":
            runner.evaluate(STOPPING[form])
        else:
            list(runner.predict(STOPPING[form]))


@pytest.mark.parametrize(
    "form",
    [
        lambda: map(lambda x: x, iter(_five())),
        lambda: filter(lambda x: True, iter(_five())),
        lambda: itertools.islice(map(lambda x: x, _five()), 10),
        lambda: itertools.chain(_five()),
        lambda: map(lambda x: x, Countdown()),
        lambda: zip(Countdown(), map(lambda x: x, _five()), strict=True),
        lambda: zip(Countdown(), itertools.repeat(floats(1)), strict=False),
        lambda: Countdown(),
        lambda: itertools.islice(Countdown(), 10),
    ],
    ids=[
        "map",
        "filter",
        "islice",
        "chain",
        "map of a class",
        "zip",
        "zip that the shortest ends",
        "class",
        "islice of a class",
    ],
)
def test_iterators_that_end_by_themselves_are_read_to_the_end(tmp_path, form):
    results = list(estimator(Summing(), tmp_path, batch_size=1).predict(form))

    assert len(results) == 5


class Countdown:
    """An iterator written in Python, over another one."""

    def __init__(self):
        self._inner = iter(_five())

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._inner)


# An input that is in the way of its own end


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_a_generator_that_fails_as_it_is_closed_leaves_no_thread(tmp_path, call):
    error = RuntimeError("cleanup failed")

    def endless():
        try:
            while True:
                yield floats(4)
        finally:
            raise error

    before = set(threading.enumerate())
    runner = estimator(Summing(), tmp_path)
    reader = endless()
    if call == "evaluate":
        with contextlib.suppress(RuntimeError):
            runner.evaluate(lambda: reader, steps=2)
    else:
        results = runner.predict(lambda: reader)
        next(results)
        with contextlib.suppress(RuntimeError):
            results.close()

    assert threads_left(before) == []


@pytest.mark.parametrize("outcome", ["steps", "error in model_fn", "error in a hook"])
def test_a_generator_is_closed_when_the_evaluation_ends(tmp_path, outcome):
    closed = []

    def endless():
        try:
            while True:
                yield floats(4)
        finally:
            closed.append(threading.current_thread().name)

    class Failing(est.hooks.Hook):
        def after_loop(self, view):
            raise KeyError("hook")

    def model_fn(features, labels, mode):
        if outcome == "error in model_fn":
            raise KeyError("model")
        return Summing()(features, labels, mode)

    reader = endless()
    hooks = [Failing()] if outcome == "error in a hook" else []
    runner = estimator(model_fn, tmp_path)
    with contextlib.nullcontext() if outcome == "steps" else pytest.raises(KeyError):
        runner.evaluate(lambda: reader, steps=2, hooks=hooks)

    assert len(closed) == 1


def test_an_error_keeps_the_traceback_of_the_users_code(tmp_path):
    def read_record():
        raise ValueError("bad record 17")

    def generator():
        yield floats(4)
        read_record()

    with pytest.raises(ValueError) as caught:
        estimator(Summing(), tmp_path).evaluate(lambda: generator())

    assert "read_record" in [entry.name for entry in caught.traceback]


def test_training_data_without_an_end_is_read_no_further_than_needed(tmp_path):
    taken = []

    def model_fn(features, labels, mode):
        import flax.linen as nn

        loss = nn.Dense(1)(features)[:, 0]
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.1))

    def endless():
        while True:
            taken.append(1)
            yield floats(4, 1)

    estimator(model_fn, tmp_path).train(lambda: endless(), max_steps=3)

    assert len(taken) == 3
