import copy
import gc
import logging
import pickle
import weakref

import pytest

from hooks import CheckpointSaverHook, EverySteps, Hook, NanHook, NanLossError

NAN, INF = float("nan"), float("inf")


def nan_from(first):
    return lambda step: NAN if step >= first else 1.0


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_the_error_names_the_first_bad_step_and_its_loss(run_loops, bad):
    losses = {7: bad, 9: NAN}
    with pytest.raises(NanLossError) as caught:
        run_loops([NanHook()], last_step=50, loop_steps=5, losses=lambda at: losses.get(at, 1.0))
    assert caught.value.step == 7
    assert str(caught.value.loss) == str(bad)
    assert f"The loss is {bad} at step 7." in str(caught.value)


def test_the_present_loop_is_not_read_while_it_runs(make_view):
    hook = NanHook()
    hook.after_loop(make_view(0, 5))
    assert make_view.reads == []
    hook.after_loop(make_view(5, 10))
    assert make_view.reads == [("losses", 5)]
    hook.after_loop(make_view(10, 15))
    assert make_view.reads == [("losses", 5), ("losses", 10)]


def test_the_run_ends_exactly_one_loop_after_the_bad_one(run_loops):
    class Count(Hook):
        loops = 0

        def before_loop(self, step):
            self.loops += 1

    count = Count()
    with pytest.raises(NanLossError):
        run_loops([count, NanHook()], last_step=100, loop_steps=5, losses=nan_from(7))
    assert count.loops == 3  # 0-5, the bad 5-10, and 10-15, which ran meanwhile


def test_a_nan_in_the_last_loop_is_found_at_the_end(run_loops):
    with pytest.raises(NanLossError) as caught:
        run_loops([NanHook()], last_step=10, loop_steps=5, losses=nan_from(9))
    assert caught.value.step == 9


def test_no_checkpoint_has_a_nan_loss_behind_it(run_loops, saver):
    nan = NanHook()
    hooks = [nan, CheckpointSaverHook(saver, [EverySteps(5)], [nan])]
    with pytest.raises(NanLossError) as caught:
        run_loops(hooks, last_step=50, loop_steps=5, losses=nan_from(7))
    assert caught.value.step == 7
    assert saver.saved == [5]


@pytest.mark.parametrize("loop_steps", [1, 2, 5, 50])
def test_without_failing_the_run_stops_cleanly_and_saves_nothing_more(
    run_loops, saver, caplog, loop_steps
):
    nan = NanHook(fail_on_nan=False)
    hooks = [nan, CheckpointSaverHook(saver, [EverySteps(5)], [nan])]
    with caplog.at_level(logging.WARNING, "hooks.nan"):
        loops = run_loops(hooks, last_step=50, loop_steps=loop_steps, losses=nan_from(7))
    assert saver.saved == [5]
    assert loops[-1][1] < 50
    assert [record.name for record in caplog.records].count("hooks.nan") == 1
    assert "at step 7" in caplog.text


def test_without_failing_a_nan_in_the_last_loop_is_a_warning_and_a_veto(run_loops, saver, caplog):
    nan = NanHook(fail_on_nan=False)
    with caplog.at_level(logging.WARNING, "hooks.nan"):
        run_loops(
            [nan, CheckpointSaverHook(saver, listeners=[nan])],
            last_step=5,
            loop_steps=5,
            losses=nan_from(5),
        )
    assert saver.saved == []
    assert "at step 5" in caplog.text


def test_a_veto_judges_the_loops_before_as_well(make_view):
    nan = NanHook(fail_on_nan=False)
    nan.after_loop(make_view(0, 2, losses=[1.0, NAN]))
    # The saver may come before NanHook in the list: then it asks before after_loop was called.
    reason = nan.before_save(make_view(2, 4))
    assert reason is not None
    assert reason.startswith("NanHook: The loss is nan at step 2.")


def test_what_was_judged_for_a_checkpoint_is_neither_kept_nor_read_again(make_view):
    nan = NanHook()
    view = make_view(0, 5)
    kept = weakref.ref(view)
    nan.after_loop(view)
    nan.before_save(view)
    del view
    gc.collect()
    assert kept() is None
    nan.after_loop(make_view(5, 10))
    assert make_view.reads == [("losses", 5)]


def test_a_finite_run_passes(run_loops, saver):
    nan = NanHook()
    hooks = [nan, CheckpointSaverHook(saver, [EverySteps(5)], [nan])]
    run_loops(hooks, last_step=10, loop_steps=3)
    assert saver.saved == [5, 10]


def test_predict_which_has_no_losses_passes(make_view):
    nan = NanHook()
    nan.after_loop(make_view(0, 3, losses=[], mode="infer"))
    nan.end(make_view(3, 6, losses=[], mode="infer"))


def test_a_second_run_starts_without_the_findings_of_the_first(run_loops, saver):
    nan = NanHook(fail_on_nan=False)
    hooks = [nan, CheckpointSaverHook(saver, [EverySteps(5)], [nan])]
    run_loops(hooks, last_step=10, loop_steps=5, losses=nan_from(7))
    run_loops(hooks, start=5, last_step=10, loop_steps=5)
    assert saver.saved == [5, 10]


def test_no_more_than_the_last_view_is_kept(make_view):
    nan = NanHook()
    views = [make_view(0, 5), make_view(5, 10)]
    kept = [weakref.ref(view) for view in views]
    for view in views:
        nan.after_loop(view)
    del view, views
    gc.collect()
    assert [view() is not None for view in kept] == [False, True]
    nan.on_error(ValueError())
    gc.collect()
    assert kept[1]() is None


@pytest.mark.parametrize("through", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_the_error_survives_the_way_to_another_process(through):
    error = through(NanLossError(7, INF))
    assert (error.step, error.loss) == (7, INF)
    assert "at step 7" in str(error)
