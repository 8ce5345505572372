"""predict: results in input order as they are computed, and nothing left behind."""

from __future__ import annotations

import collections
import gc
import itertools
import logging
import threading

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from tests.fakes import threads_left

X = np.random.default_rng(3).normal(size=(19, 3)).astype(np.float32)
WAIT_SECS = 10  # only a test that fails waits for so long

Pair = collections.namedtuple("Pair", "ids twice")

pytestmark = pytest.mark.usefixtures("no_new_threads")


def echo(features, mode):
    """Predicts the number of each example: a model without variables."""
    predictions = {"id": features["id"], "square": features["id"].astype(jnp.float32) ** 2}
    return est.EstimatorSpec(mode, predictions=predictions)


def linear(features, labels, mode):
    outputs = nn.Dense(2)(features["x"])
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"y": outputs})
    loss = ((outputs.sum(-1) - labels) ** 2).mean()
    return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.1))


def predictor(model_fn, model_dir, *, devices=1, batch_size=4, **config):
    return est.Estimator(
        model_fn,
        model_dir=model_dir,
        predict_batch_size=batch_size,
        train_batch_size=batch_size,
        config=est.RunConfig(
            devices=est.DeviceConfig(devices=jax.devices()[:devices]),
            save_summary_steps=None,
            log_step_count_steps=None,
            **config,
        ),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with checkpoints of `linear` at 2 and 3."""
    model_dir = tmp_path_factory.mktemp("trained")
    labels = X.sum(axis=1)
    predictor(linear, model_dir, save_checkpoints_steps=2).train(
        lambda: ({"x": X}, labels), max_steps=3
    )
    return model_dir


def numbered(rows):
    return {"id": np.arange(rows, dtype=np.int32)}


def batches(count, size=4, taken=None):
    """Yields numbered batches, and writes down each that it yields."""
    for batch in range(count) if count is not None else itertools.count():
        if taken is not None:
            taken.append(batch)
        yield {"id": np.arange(batch * size, (batch + 1) * size, dtype=np.int32)}


# Count and order


@pytest.mark.parametrize(
    "rows, batch_size, devices",
    [(13, 8, 4), (408, 10, 1), (400, 10, 1), (512, 16, 1), (1, 8, 1), (1, 8, 8), (7, 1, 1)],
)
@pytest.mark.parametrize("as_batches", [False, True])
def test_there_is_one_result_for_each_example_in_input_order(
    tmp_path, rows, batch_size, devices, as_batches
):
    def input_fn():
        if not as_batches:
            return numbered(rows)
        ids = np.arange(rows, dtype=np.int32)
        return ({"id": ids[i : i + batch_size]} for i in range(0, rows, batch_size))

    estimator = predictor(echo, tmp_path, devices=devices, batch_size=batch_size)

    results = list(estimator.predict(input_fn))

    assert [int(result["id"]) for result in results] == list(range(rows))
    assert [float(result["square"]) for result in results] == [i * i for i in range(rows)]


@pytest.mark.parametrize("rows, batch_size", [(400, 10), (512, 16)])
def test_no_batch_of_padding_alone_is_run(tmp_path, rows, batch_size):
    diary = Diary("a", [])

    list(
        predictor(echo, tmp_path, batch_size=batch_size).predict(
            lambda: numbered(rows), hooks=[diary]
        )
    )

    assert sum(view.step - view.before for view in diary.views) == rows // batch_size
    assert sum(view.examples for view in diary.views) == rows


def test_partial_batches_in_the_middle_of_the_input_leave_no_padding(tmp_path):
    def ragged():
        for start, stop in [(0, 3), (3, 7), (7, 8), (8, 12)]:
            yield {"id": np.arange(start, stop, dtype=np.int32)}

    batches_out = list(
        predictor(echo, tmp_path).predict(lambda: ragged(), yield_single_examples=False)
    )

    assert [batch["id"].tolist() for batch in batches_out] == [
        [0, 1, 2],
        [3, 4, 5, 6],
        [7],
        [8, 9, 10, 11],
    ]


def test_labels_of_the_input_are_not_used(tmp_path):
    def model_fn(features, labels, mode):
        assert labels is None
        return echo(features, mode)

    results = predictor(model_fn, tmp_path).predict(lambda: (numbered(5), np.zeros(5)))

    assert [int(result["id"]) for result in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "empty",
    [lambda: numbered(0), lambda: iter([]), lambda: iter([numbered(0)])],
    ids=["arrays without rows", "iterator", "batches without rows"],
)
def test_an_input_without_rows_yields_nothing(tmp_path, empty):
    assert list(predictor(echo, tmp_path).predict(empty)) == []


def test_an_input_that_drops_its_only_batch_yields_nothing_and_says_so(tmp_path, caplog):
    def input_fn(params):
        dataset = est.input_pipeline.Dataset.from_arrays(numbered(1))
        return dataset.batch(params["batch_size"], drop_remainder=True)

    assert list(predictor(echo, tmp_path).predict(input_fn)) == []
    assert "input_fn produced no batches" in caplog.text
    assert "drops its remainder" in caplog.text


# What is yielded


def test_whole_batches_are_yielded_on_request(tmp_path):
    results = list(
        predictor(echo, tmp_path).predict(lambda: numbered(10), yield_single_examples=False)
    )

    assert [result["id"].tolist() for result in results] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("keys", ["square", ["square"], ("square",)])
def test_predict_keys_choose_among_the_predictions(tmp_path, keys):
    results = list(predictor(echo, tmp_path).predict(lambda: numbered(3), predict_keys=keys))

    assert [set(result) for result in results] == [{"square"}] * 3
    assert [float(result["square"]) for result in results] == [0, 1, 4]


def test_an_unknown_predict_key_is_an_error_that_lists_the_known_ones(tmp_path):
    results = predictor(echo, tmp_path).predict(lambda: numbered(3), predict_keys=["id", "cube"])

    with pytest.raises(ValueError, match=r"\['cube'\].*\['id', 'square'\]"):
        next(results)


@pytest.mark.parametrize("keys", [{"square"}, frozenset({"square"}), ("square",), "square"])
def test_predict_keys_may_come_in_any_collection(tmp_path, keys):
    results = predictor(echo, tmp_path).predict(lambda: numbered(3), predict_keys=keys)

    assert [set(result) for result in results] == [{"square"}] * 3


@pytest.mark.parametrize("keys", [[], (), set()])
def test_no_predict_keys_at_all_are_an_error(tmp_path, keys):
    with pytest.raises(ValueError, match=r"leaves nothing to compute.* None for all"):
        predictor(echo, tmp_path).predict(lambda: numbered(3), predict_keys=keys)


@pytest.mark.parametrize("keys", [[3], {3, "square"}, 3])
def test_predict_keys_must_be_names(tmp_path, keys):
    with pytest.raises(TypeError, match="predict_keys must be names"):
        predictor(echo, tmp_path).predict(lambda: numbered(3), predict_keys=keys)


@pytest.mark.parametrize(
    "make, read",
    [
        (lambda i: i, lambda p: int(p)),
        (lambda i: (i, 2 * i), lambda p: (int(p[0]), int(p[1]))),
        (lambda i: Pair(i, 2 * i), lambda p: (int(p.ids), int(p.twice))),
        (lambda i: {"a": {"b": i}}, lambda p: int(p["a"]["b"])),
        (lambda i: [i, {"b": i[:, None]}], lambda p: (int(p[0]), p[1]["b"].shape)),
    ],
    ids=["array", "tuple", "namedtuple", "nested dict", "list"],
)
def test_predictions_keep_their_structure(tmp_path, make, read):
    def model_fn(features, mode):
        return est.EstimatorSpec(mode, predictions=make(features["id"]))

    results = list(predictor(model_fn, tmp_path).predict(lambda: numbered(6)))

    ids = [np.array([i], np.int32) for i in range(6)]
    wanted = [read(jax.tree.map(lambda leaf: leaf[0], make(i))) for i in ids]
    assert [read(result) for result in results] == wanted
    assert type(results[0]) is type(make(np.array([0], np.int32))) or not isinstance(
        results[0], tuple
    )


def test_results_are_numpy(tmp_path):
    (result,) = predictor(echo, tmp_path).predict(lambda: numbered(1))

    assert isinstance(result["id"], np.generic | np.ndarray)
    (batch,) = predictor(echo, tmp_path).predict(lambda: numbered(1), yield_single_examples=False)
    assert isinstance(batch["id"], np.ndarray)


# Which variables


def test_predicts_with_the_newest_checkpoint_unless_given_another(trained):
    estimator = predictor(linear, trained)
    older = trained / "checkpoints" / "2"
    kernel = estimator.get_variable_value("params/Dense_0/kernel")
    bias = estimator.get_variable_value("params/Dense_0/bias")

    newest = [result["y"] for result in estimator.predict(lambda: {"x": X})]
    before = [result["y"] for result in estimator.predict(lambda: {"x": X}, checkpoint_path=older)]

    np.testing.assert_allclose(newest, X @ kernel + bias, rtol=1e-5, atol=1e-6)
    assert not np.allclose(before, newest, rtol=1e-3)


def test_a_checkpoint_that_is_not_there_is_an_error_at_the_call(trained):
    with pytest.raises(FileNotFoundError, match="nope"):
        predictor(linear, trained).predict(lambda: {"x": X}, checkpoint_path="nope")


def test_without_a_checkpoint_the_initial_variables_predict_with_a_warning(tmp_path, caplog):
    estimator = predictor(linear, tmp_path)

    first, second = (
        [result["y"] for result in estimator.predict(lambda: {"x": X})] for _ in range(2)
    )

    np.testing.assert_array_equal(first, second)
    assert np.abs(first).max() > 0
    warnings = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert any("no checkpoint" in message for message in warnings)


# Streaming


@pytest.mark.parametrize("iterations_per_loop", [1, 3, 100])
def test_results_arrive_while_the_input_still_waits_for_more(tmp_path, iterations_per_loop):
    seen_results = threading.Event()

    def slow():
        yield from batches(2)
        if not seen_results.wait(WAIT_SECS):
            raise AssertionError("The results of the first batches were held back.")
        yield {"id": np.arange(8, 12, dtype=np.int32)}

    estimator = predictor(echo, tmp_path, iterations_per_loop=iterations_per_loop)
    results = estimator.predict(lambda: slow())

    ids = [int(next(results)["id"]) for _ in range(8)]
    seen_results.set()
    ids += [int(result["id"]) for result in results]

    assert ids == list(range(12))


@pytest.mark.parametrize("iterations_per_loop", [1, 5])
def test_the_input_is_read_only_a_few_loops_ahead_of_the_consumer(tmp_path, iterations_per_loop):
    taken = []
    estimator = predictor(echo, tmp_path, iterations_per_loop=iterations_per_loop)
    results = estimator.predict(lambda: batches(None, taken=taken), yield_single_examples=False)

    ahead = []
    for consumed, _ in zip(range(1, 60 * iterations_per_loop), results, strict=False):
        ahead.append(len(taken) - consumed)
    results.close()

    # In the worst case: one stack being read by the consumer, two results and one being
    # delivered, two dispatches under way, two transfers waiting and one being filled.
    assert max(ahead) <= 9 * iterations_per_loop
    # The bound is not that of the data: without one, the endless input runs away.
    assert len(taken) < 70 * iterations_per_loop


def test_nothing_happens_before_the_first_result_is_asked_for(tmp_path):
    called = []
    before = set(threading.enumerate())

    results = predictor(echo, tmp_path).predict(lambda: called.append(1) or numbered(3))
    assert called == []
    assert threads_left(before) == []
    results.close()

    assert called == []


@pytest.mark.parametrize("single", [True, False])
def test_closing_early_stops_an_endless_input_and_its_threads(tmp_path, single):
    finished = []

    def endless():
        try:
            yield from batches(None)
        finally:
            finished.append(True)

    before = set(threading.enumerate())
    results = predictor(echo, tmp_path, iterations_per_loop=2).predict(
        lambda: endless(), yield_single_examples=single
    )
    next(results)
    results.close()

    assert threads_left(before) == []
    assert finished == [True]
    with pytest.raises(StopIteration):
        next(results)


def test_dropping_the_results_stops_the_threads_too(tmp_path):
    before = set(threading.enumerate())

    for _ in predictor(echo, tmp_path, iterations_per_loop=2).predict(lambda: batches(None)):
        break
    gc.collect()

    assert threads_left(before) == []


def test_an_error_of_the_consumer_stops_the_threads(tmp_path):
    before = set(threading.enumerate())
    results = predictor(echo, tmp_path, iterations_per_loop=2).predict(lambda: batches(None))
    error = KeyError("consumer")
    next(results)

    with pytest.raises(KeyError) as caught:
        results.throw(error)

    assert caught.value is error
    assert threads_left(before) == []


def test_two_predictions_may_run_at_the_same_time(tmp_path):
    estimator = predictor(echo, tmp_path, iterations_per_loop=1)

    both = zip(
        estimator.predict(lambda: numbered(11)),
        estimator.predict(lambda: numbered(11)),
        strict=True,
    )

    assert [(int(a["id"]), int(b["id"])) for a, b in both] == [(i, i) for i in range(11)]


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
        self.book.append((self.name, "on_error", type(error)))


def test_hooks_are_called_in_order_and_shown_every_loop(tmp_path):
    book = []
    hooks = [Diary("a", book), Diary("b", book)]

    list(
        predictor(echo, tmp_path, iterations_per_loop=2).predict(lambda: numbered(19), hooks=hooks)
    )

    steps = [("begin",)]
    for before, after in [(0, 2), (2, 4), (4, 5)]:
        steps += [("before_loop", before), ("after_loop", before, after)]
    steps += [("end", 5)]
    assert book == [(name, *step) for step in steps for name in "ab"]
    assert hooks[0].context.mode == "infer"
    assert hooks[0].context.batch_size == 4
    assert [view.examples for view in hooks[0].views] == [8, 8, 3]
    assert [view.losses.size for view in hooks[0].views] == [0, 0, 0]


def test_hooks_are_told_how_long_a_loop_took(tmp_path):
    diary = Diary("a", [])

    list(predictor(echo, tmp_path).predict(lambda: numbered(9), hooks=[diary]))

    assert all(view.elapsed_secs > 0 for view in diary.views)


def test_a_hook_may_stop_a_prediction_at_an_exact_batch(tmp_path):
    results = predictor(echo, tmp_path).predict(
        lambda: numbered(40), hooks=[est.hooks.StopAtStepHook(num_steps=2)]
    )

    assert [int(result["id"]) for result in results] == list(range(8))


# Errors reach the caller as themselves

BOOM = ValueError("bad record 17")


def _raise_boom(*args, **kwargs):
    raise BOOM


def _failing_generator(good):
    yield from batches(good)
    raise BOOM


class _FailingHook(est.hooks.Hook):
    def __init__(self, method):
        setattr(self, method, _raise_boom)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda: (echo, _raise_boom, None),
        lambda: (echo, lambda: _failing_generator(0), None),
        lambda: (echo, lambda: _failing_generator(1), None),
        lambda: (echo, lambda: _failing_generator(3), None),
        lambda: (echo, lambda: _failing_generator(40), None),
        lambda: (lambda features, mode: _raise_boom(), lambda: numbered(9), None),
        lambda: (echo, lambda: numbered(9), "begin"),
        lambda: (echo, lambda: numbered(9), "before_loop"),
        lambda: (echo, lambda: numbered(9), "after_loop"),
        lambda: (echo, lambda: numbered(9), "end"),
    ],
    ids=[
        "input_fn",
        "generator at once",
        "generator after 1",
        "generator after 3",
        "generator after 40",
        "model_fn",
        "hook begin",
        "hook before_loop",
        "hook after_loop",
        "hook end",
    ],
)
def test_an_error_of_the_users_code_reaches_the_caller_as_itself(tmp_path, arrange):
    model_fn, input_fn, method = arrange()
    hooks = [] if method is None else [_FailingHook(method)]
    before = set(threading.enumerate())

    with pytest.raises(ValueError) as caught:
        list(predictor(model_fn, tmp_path, iterations_per_loop=4).predict(input_fn, hooks=hooks))

    assert caught.value is BOOM
    assert threads_left(before) == []


def test_an_error_before_the_first_result_closes_the_input(tmp_path):
    finished = []

    def generator():
        try:
            yield from batches(3)
        finally:
            finished.append(True)

    reader = generator()  # held here, so that no garbage collection closes it
    with pytest.raises(ValueError):
        next(predictor(echo, tmp_path).predict(lambda: reader, predict_keys=["cube"]))

    assert finished == [True]


# Bad arguments and specs


def test_only_the_batch_size_of_prediction_is_needed_to_predict(tmp_path):
    estimator = est.Estimator(echo, model_dir=tmp_path, predict_batch_size=8)

    assert len(list(estimator.predict(lambda: numbered(3)))) == 3
    with pytest.raises(ValueError, match="train_batch_size is missing"):
        estimator.train(lambda: numbered(3), steps=1)


def test_a_missing_batch_size_is_named_at_the_call_and_before_the_input_is_asked(tmp_path):
    called = []

    with pytest.raises(ValueError, match="predict_batch_size is missing"):
        est.Estimator(echo, model_dir=tmp_path).predict(lambda: called.append(1))
    assert called == []


@pytest.mark.parametrize(
    "predictions, error, words",
    [
        (lambda i: None, ValueError, "no predictions in mode ModeKeys.PREDICT"),
        (lambda i: {"mean": i.mean()}, ValueError, r"predictions\['mean'\].*\[\].*\[4, ...\]"),
        (lambda i: {"first": i[:2]}, ValueError, r"predictions\['first'\].*\[2\].*\[4, ...\]"),
        (lambda i: {"name": "digit"}, TypeError, r"predictions\['name'\].*array.*str"),
        (lambda i: {}, ValueError, "predictions"),
    ],
    ids=["none", "scalar", "too short", "string", "empty"],
)
def test_predictions_that_cannot_be_given_back_by_example_are_refused(
    tmp_path, predictions, error, words
):
    def model_fn(features, mode):
        return est.EstimatorSpec(mode, predictions=predictions(features["id"]))

    with pytest.raises(error, match=words):
        list(predictor(model_fn, tmp_path).predict(lambda: numbered(6)))


def test_the_newest_checkpoint_is_that_of_the_first_result(tmp_path):
    model = predictor(linear, tmp_path, keep_checkpoint_max=1)
    x = {"x": np.ones((8, 3), np.float32)}
    arrays = x, np.ones(8, np.float32)
    model.train(lambda: arrays, steps=1)
    results = model.predict(lambda: x)
    model.train(lambda: arrays, steps=1)  # which removes the checkpoint of the call

    expected = list(model.predict(lambda: x, checkpoint_path=model.latest_checkpoint()))
    jax.tree.map(np.testing.assert_array_equal, list(results), expected)


# Columns that hold no numbers


def named(rows):
    """Numbered rows with a name each, "n0" and so on."""
    return {**numbered(rows), "name": np.array([f"n{row}" for row in range(rows)])}


def named_batches(rows, size=4):
    columns = named(rows)
    for start in range(0, rows, size):
        yield {name: column[start : start + size] for name, column in columns.items()}


NAMED_INPUTS = {
    "arrays": lambda: named(10),
    "shuffled dataset": lambda: est.input_pipeline.Dataset.from_arrays(named(10)).shuffle(0),
    "mapped dataset": lambda: est.input_pipeline.Dataset.from_arrays(named(10)).map(dict),
    "generator": lambda: named_batches(10),
}


@pytest.mark.parametrize("form", NAMED_INPUTS)
def test_strings_come_beside_the_predictions_of_their_example(tmp_path, form):
    results = list(predictor(echo, tmp_path).predict(NAMED_INPUTS[form]))

    assert sorted(int(result["id"]) for result in results) == list(range(10))
    assert [result["name"] for result in results] == [f"n{result['id']}" for result in results]


def test_a_batch_of_predictions_has_its_strings_without_padding(tmp_path):
    results = predictor(echo, tmp_path).predict(lambda: named(6), yield_single_examples=False)

    assert [result["name"].tolist() for result in results] == [
        ["n0", "n1", "n2", "n3"],
        ["n4", "n5"],
    ]


@pytest.mark.parametrize("keys", [["name"], ["square", "name"], ["square"]])
def test_predict_keys_choose_among_strings_too(tmp_path, keys):
    results = list(predictor(echo, tmp_path).predict(lambda: named(6), predict_keys=keys))

    assert [set(result) for result in results] == [set(keys)] * 6


def test_strings_named_as_a_prediction_are_an_error_naming_it(tmp_path):
    data = {**numbered(3), "square": np.array(["a", "b", "c"])}

    with pytest.raises(ValueError, match=r"\['square'\] hold no numbers.*Rename"):
        next(predictor(echo, tmp_path).predict(lambda: data))


def test_strings_beside_predictions_that_are_no_dict_are_an_error_with_the_way_out(tmp_path):
    def model_fn(features, mode):
        return est.EstimatorSpec(mode, predictions=features["id"])

    with pytest.raises(ValueError, match=r"\['name'\] hold no numbers.*Return a dict"):
        next(predictor(model_fn, tmp_path).predict(lambda: named(3)))


@pytest.mark.parametrize("call", ["train", "evaluate"])
@pytest.mark.parametrize("column", [np.array(["a", "b"]), np.array([b"a", b"b"]), [None, "a"]])
def test_strings_in_training_and_evaluation_are_an_error_naming_column_and_fix(
    tmp_path, nothing_compiled, call, column
):
    data = {"x": X[:2], "name": np.array(column, object) if isinstance(column, list) else column}

    with pytest.raises(ValueError, match=r"\['name'\] holds.*(?i:map).*to integer ids.*predict"):
        model = est.Estimator(linear, tmp_path, train_batch_size=8, eval_batch_size=8)
        getattr(model, call)(lambda: (data, np.zeros(2, np.float32)))
