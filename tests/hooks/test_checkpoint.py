import logging
from pathlib import Path

import pytest

from hooks import CheckpointSaverHook, EverySecs, EverySteps, Hook


class Listener(Hook):
    def __init__(self, veto_at=()):
        self.veto_at = veto_at
        self.calls = []

    def before_save(self, view):
        self.calls.append(("before", view.step))
        return f"vetoed at {view.step}" if view.step in self.veto_at else None

    def after_save(self, step, path):
        self.calls.append(("after", step, path))


def test_loops_are_cut_so_that_checkpoints_fall_on_exact_multiples(saver, run_loops):
    run_loops([CheckpointSaverHook(saver, [EverySteps(250)])], last_step=1000, loop_steps=100)
    assert saver.saved == [250, 500, 750, 1000]


def test_the_end_saves_where_the_run_stopped_and_waits_for_the_disk(saver, run_loops):
    run_loops([CheckpointSaverHook(saver, [EverySteps(10)])], last_step=17, loop_steps=5)
    assert saver.saved == [10, 17]
    assert saver.waits == 1


def test_a_run_without_a_loop_saves_where_it_started(saver, run_loops):
    run_loops([CheckpointSaverHook(saver, [EverySteps(10)])], start=4, last_step=4, loop_steps=5)
    assert saver.saved == [4]


def test_without_a_period_only_the_end_is_saved(saver, run_loops):
    run_loops([CheckpointSaverHook(saver)], last_step=17, loop_steps=5)
    assert saver.saved == [17]


def test_a_period_in_seconds_saves_at_the_first_loop_end_after_it(saver, clock, make_view):
    hook = CheckpointSaverHook(saver, [EverySecs(60, clock)])
    assert hook.next_step(0) is None
    for step in (10, 20, 30, 40):
        clock.advance(25)
        hook.after_loop(make_view(step - 10, step))
    assert saver.saved == [30]


def test_a_due_save_never_reads_a_value_itself(saver, make_view, run_loops):
    run_loops([CheckpointSaverHook(saver, [EverySteps(5)])], last_step=10, loop_steps=5)
    assert make_view.reads == []


def test_listeners_hear_before_and_after_each_save(saver, run_loops):
    listener = Listener()
    run_loops([CheckpointSaverHook(saver, [EverySteps(5)], [listener])], last_step=7, loop_steps=10)
    assert listener.calls == [
        ("before", 5),
        ("after", 5, Path("model/5")),
        ("before", 7),
        ("after", 7, Path("model/7")),
    ]


def test_one_veto_keeps_the_checkpoint_from_being_written_and_is_logged(saver, run_loops, caplog):
    first, second = Listener(veto_at={5}), Listener()
    hook = CheckpointSaverHook(saver, [EverySteps(5)], [first, second])
    with caplog.at_level(logging.WARNING, "hooks"):
        run_loops([hook], last_step=10, loop_steps=10)
    assert saver.saved == [10]
    assert [call[:2] for call in second.calls] == [("before", 5), ("before", 10), ("after", 10)]
    assert [record.getMessage() for record in caplog.records] == [
        "No checkpoint at step 5: vetoed at 5"
    ]


def test_a_veto_at_the_end_leaves_the_earlier_checkpoint_as_the_last(saver, run_loops):
    hook = CheckpointSaverHook(saver, [EverySteps(5)], [Listener(veto_at={7})])
    run_loops([hook], last_step=7, loop_steps=10)
    assert saver.saved == [5]
    assert saver.waits == 2  # before the listener hears of it, and at the end


def test_the_end_does_not_ask_again_about_a_step_that_was_just_settled(saver, run_loops, caplog):
    listener = Listener(veto_at={10})
    run_loops([CheckpointSaverHook(saver, [EverySteps(5)], [listener])], last_step=10, loop_steps=5)
    assert [call[:2] for call in listener.calls] == [("before", 5), ("after", 5), ("before", 10)]
    assert len(caplog.records) == 1


def test_listeners_hear_of_no_save_that_was_not_made(saver, run_loops):
    listener = Listener()
    saver.saved.append(4)  # the run was restored from there
    hook = CheckpointSaverHook(saver, [EverySteps(10)], [listener])
    run_loops([hook], start=4, last_step=4, loop_steps=10)
    assert listener.calls == [("before", 4)]


def test_an_error_of_the_last_write_reaches_the_caller_at_the_end(saver, run_loops):
    saver.wait_error = OSError("disk full")
    with pytest.raises(OSError) as caught:
        run_loops([CheckpointSaverHook(saver)], last_step=5, loop_steps=5)
    assert caught.value is saver.wait_error
    assert not hasattr(caught.value, "__notes__")


def test_only_training_may_be_saved(saver, make_context):
    with pytest.raises(ValueError, match=r"mode is 'eval'\. Give it to train\(\)"):
        CheckpointSaverHook(saver).begin(make_context(mode="eval"))


@pytest.mark.parametrize("every", [100, EverySteps(100)])
def test_a_period_alone_is_refused_with_the_right_way_to_write_it(saver, every):
    with pytest.raises(TypeError, match=r"must be a list .* Write every=\[EverySteps\(100\)\]"):
        CheckpointSaverHook(saver, every)


def test_a_bare_number_as_a_period_is_refused_with_the_right_way_to_write_it(saver):
    with pytest.raises(TypeError, match=r"got 100\. Write every=EverySteps\(100\)"):
        CheckpointSaverHook(saver, [100])  # pyright: ignore[reportArgumentType]


def test_steps_and_seconds_compose(saver, clock, make_view):
    hook = CheckpointSaverHook(saver, [EverySteps(30), EverySecs(60, clock)])
    assert hook.next_step(0) == 30
    for step in (10, 20, 30, 40, 50, 60):
        clock.advance(25)
        hook.after_loop(make_view(step - 10, step))
    assert saver.saved == [30, 60]  # at 30 both are due, at 60 too


def test_of_several_periods_in_steps_the_nearest_cuts_the_loop(saver, run_loops):
    run_loops(
        [CheckpointSaverHook(saver, [EverySteps(6), EverySteps(4)])], last_step=12, loop_steps=100
    )
    assert saver.saved == [4, 6, 8, 12]


class Request:
    """Asks for a checkpoint at the steps of given loops, counted from zero."""

    def __init__(self, saver, *loops):
        self.saver = saver
        self.loops = loops
        self.looks = 0
        self.served_after = []

    def pending(self):
        self.looks += 1
        return self.looks - 1 in self.loops

    def served(self):
        self.served_after.append((list(self.saver.saved), self.saver.waits))


def test_what_is_asked_for_is_saved_behind_the_loop_and_served_once_on_disk(saver, run_loops):
    request = Request(saver, 1)
    run_loops([CheckpointSaverHook(saver, requests=[request])], last_step=20, loop_steps=5)
    assert saver.saved == [10, 20]
    assert request.served_after == [([10], 1)]


def test_all_processes_do_what_was_agreed_on_and_not_what_they_would(saver, run_loops):
    asked = []

    def never_at_ten(what, due):
        if what != "save":
            return due
        asked.append(due)
        return len(asked) == 3

    hook = CheckpointSaverHook(saver, [EverySteps(10)], agree=never_at_ten)
    run_loops([hook], last_step=20, loop_steps=5)
    assert asked == [False, True, False, True]
    assert saver.saved == [15, 20]  # the end is the end for all
