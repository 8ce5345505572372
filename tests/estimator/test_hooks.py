"""How train, evaluate and predict treat the hooks they are given, and those of a model_fn."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import estimator as est
from tests.fakes import config, latest_step, mlp, numbered, saved_steps

BATCH = 4
ROWS = 20  # five batches
METHODS = ("begin", "next_step", "before_loop", "after_loop", "end")


class Diary(est.hooks.Hook):
    """Writes every call into a book that it may share, and raises in one method."""

    def __init__(self, name, book, fails=None, error=None):
        self.name, self.book = name, book
        self.fails, self.error = fails, error

    def _note(self, method, *details):
        self.book.append((self.name, method, *details))
        if method == self.fails:
            raise self.error

    def begin(self, context):
        self._note("begin", context.mode, context.step)

    def next_step(self, step):
        self._note("next_step")

    def before_loop(self, step):
        self._note("before_loop")

    def after_loop(self, view):
        self._note("after_loop", view.before, view.step)

    def before_save(self, view):
        self._note("before_save")

    def end(self, view):
        self._note("end", view.step)

    def on_error(self, error):
        self._note("on_error", error)

    def __repr__(self):
        return f"<Diary {self.name}>"


def with_hooks(**given):
    """Returns `mlp` as a model_fn whose spec has these hooks."""

    def model_fn(features, labels, mode, params, context):
        return dataclasses.replace(mlp(features, labels, mode, params, context), **given)

    return model_fn


def make(folder, model_fn=mlp, **settings):
    return est.Estimator(
        model_fn,
        folder,
        config(**{"iterations_per_loop": 2, **settings}),
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


def data():
    return numbered(ROWS)


def train(estimator, hooks=()):
    estimator.train(data, hooks=hooks)


def evaluate(estimator, hooks=()):
    estimator.evaluate(data, hooks=hooks)


def predict(estimator, hooks=()):
    list(estimator.predict(data, hooks=hooks))


RUNS = {"train": train, "eval": evaluate, "infer": predict}
FIELDS = {"train": "training_hooks", "eval": "evaluation_hooks", "infer": "prediction_hooks"}


@pytest.mark.parametrize("mode", RUNS)
def test_hooks_of_the_spec_run_in_their_mode_after_those_that_are_given(tmp_path, mode):
    book = []
    fields = {name: [Diary(name, book)] for name in FIELDS.values()}

    RUNS[mode](make(tmp_path, with_hooks(**fields)), [Diary("given", book)])

    assert {entry[0] for entry in book} == {"given", FIELDS[mode]}
    for method in ("begin", "before_loop", "after_loop", "end"):
        names = [entry[0] for entry in book if entry[1] == method]
        assert names == ["given", FIELDS[mode]] * (len(names) // 2)
    assert [entry[2:] for entry in book if entry[:2] == (FIELDS[mode], "after_loop")] == [
        (0, 2),
        (2, 4),
        (4, 5),
    ]


@pytest.mark.parametrize("mode", RUNS)
def test_hooks_of_the_spec_are_made_once_and_begin_anew_in_every_run(tmp_path, mode):
    book, made = [], []

    def model_fn(features, labels, mode, params, context):
        made.append(Diary(len(made), book))
        spec = mlp(features, labels, mode, params, context)
        return dataclasses.replace(spec, **{FIELDS[str(mode)]: [made[-1]]})

    estimator = make(tmp_path, model_fn)
    RUNS[mode](estimator)
    RUNS[mode](estimator)

    starts = (0, 5) if mode == "train" else (0, 0)
    assert [entry for entry in book if entry[1] == "begin"] == [
        (0, "begin", mode, start) for start in starts
    ]


@pytest.mark.parametrize("field", FIELDS.values())
@pytest.mark.parametrize("hooks", [est.hooks.NanHook(), [est.hooks.NanHook], [lambda view: None]])
def test_what_is_no_list_of_hooks_is_refused_with_the_name_of_the_field(tmp_path, field, hooks):
    with pytest.raises(TypeError, match=rf"EstimatorSpec\.{field} must be"):
        train(make(tmp_path, with_hooks(**{field: hooks})))


def test_hooks_of_the_spec_may_come_from_a_generator(tmp_path):
    book = []
    train(make(tmp_path, with_hooks(training_hooks=(Diary(name, book) for name in "ab"))))
    assert [entry[0] for entry in book if entry[1] == "begin"] == ["a", "b"]


def test_a_nan_hook_of_the_spec_replaces_the_built_in_one(tmp_path):
    kind = est.hooks.NanHook(fail_on_nan=False)

    def model_fn(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, params, context)
        return dataclasses.replace(spec, loss=spec.loss * np.nan, training_hooks=[kind])

    estimator = make(tmp_path, model_fn)
    train(estimator)
    assert latest_step(estimator) is None


@pytest.mark.parametrize("mode", RUNS)
def test_a_hook_that_is_given_twice_is_refused_by_name(tmp_path, mode):
    book = []
    hook = Diary("twice", book)
    for model_fn, hooks in [(mlp, [hook, hook]), (with_hooks(**{FIELDS[mode]: [hook]}), [hook])]:
        with pytest.raises(ValueError, match=r"<Diary twice> is given twice"):
            RUNS[mode](make(tmp_path, model_fn), hooks)
    assert book == []


def test_a_hook_that_is_a_saving_listener_too_hears_of_a_save_once(tmp_path):
    book = []
    hook = Diary("a", book)
    make(tmp_path).train(data, hooks=[hook], saving_listeners=[hook])
    assert book.count(("a", "before_save")) == 1


@pytest.mark.parametrize("mode", RUNS)
def test_a_hook_serves_one_run_after_the_other(tmp_path, mode):
    book = []
    estimator, hook = make(tmp_path), Diary("a", book)
    RUNS[mode](estimator, [hook])
    half = len(book)
    RUNS[mode](estimator, [hook])

    later = 5 if mode == "train" else 0
    moved = [
        (name, method, *(d + later if isinstance(d, int) else d for d in details))
        for name, method, *details in book[:half]
    ]
    assert book[half:] == moved


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", RUNS)
def test_an_error_in_any_method_reaches_the_caller_and_every_hook_that_began(
    tmp_path, mode, method, no_new_threads
):
    book, boom = [], ZeroDivisionError("boom")
    before, broken, after = (
        Diary("before", book),
        Diary("broken", book, fails=method, error=boom),
        Diary("after", book),
    )
    with pytest.raises(ZeroDivisionError) as caught:
        RUNS[mode](make(tmp_path), [before, broken, after])

    assert caught.value is boom
    heard = [entry for entry in book if entry[1] == "on_error"]
    begun = ["before", "broken"] if method == "begin" else ["before", "broken", "after"]
    assert heard == [(name, "on_error", boom) for name in begun]


def test_an_error_before_a_save_reaches_the_caller_and_nothing_is_saved(tmp_path, no_new_threads):
    boom = ZeroDivisionError("boom")
    estimator = make(tmp_path)
    with pytest.raises(ZeroDivisionError) as caught:
        train(estimator, [Diary("broken", [], fails="before_save", error=boom)])
    assert caught.value is boom
    assert saved_steps(estimator) == []


def test_an_error_on_hearing_of_an_error_is_a_note_of_the_first(tmp_path):
    boom = ZeroDivisionError("boom")

    def fails(view):
        raise boom

    deaf = Diary("deaf", [], fails="on_error", error=OSError("no ears"))
    with pytest.raises(ZeroDivisionError) as caught:
        train(make(tmp_path), [deaf, est.hooks.LambdaHook(after_loop=fails)])
    assert caught.value.__notes__ == ["Diary.on_error failed too: OSError: no ears"]


def test_a_reader_that_wants_no_more_predictions_is_told_to_the_hooks(tmp_path):
    book = []
    results = make(tmp_path).predict(data, hooks=[Diary("a", book)])
    next(results)
    results.close()
    name, method, error = book[-1]
    assert (name, method) == ("a", "on_error") and isinstance(error, GeneratorExit)


def test_hooks_see_the_metrics_of_each_batch_of_an_evaluation(tmp_path):
    views = []

    def model_fn(features, labels, mode, params, context):
        spec = mlp(features, labels, mode, params, context)
        return dataclasses.replace(spec, metrics={"id": features["id"].astype(float)})

    make(tmp_path, model_fn).evaluate(
        lambda: numbered(9), hooks=[est.hooks.LambdaHook(after_loop=views.append)]
    )

    ids = np.concatenate([view.metrics["id"] for view in views])
    np.testing.assert_allclose(ids, [1.5, 5.5, 8.0])  # of 0..3, 4..7, and 8 alone
