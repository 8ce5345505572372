import logging

import numpy as np
import pytest

from hooks import EverySecs, EverySteps, LoggingHook, ThroughputHook


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "hooks")
    return lambda: [record.getMessage() for record in caplog.records]


class TestLoggingHook:
    def test_it_logs_step_loss_and_metrics_of_the_last_step_of_a_due_loop(self, make_view, lines):
        hook = LoggingHook(EverySteps(10))
        view = make_view(6, 11, losses=[5, 4, 3, 2, 0.5], metrics={"accuracy": [0, 0, 0, 0, 0.75]})
        hook.after_loop(view)
        hook.end(view)
        assert lines() == ["step 11: loss = 0.5, accuracy = 0.75"]

    def test_a_loop_is_read_only_when_the_next_one_is_under_way(self, make_view, lines):
        hook = LoggingHook(EverySteps(5))
        hook.after_loop(make_view(0, 5, losses=[1, 2, 3, 4, 5]))
        assert make_view.reads == []
        hook.after_loop(make_view(5, 6, losses=[6]))
        assert lines() == ["step 5: loss = 5"]

    def test_an_error_does_not_swallow_the_line_that_was_due(self, make_view, lines):
        hook = LoggingHook(EverySteps(5))
        hook.after_loop(make_view(0, 5, losses=[1, 2, 3, 4, 5]))
        hook.on_error(RuntimeError())
        assert lines() == ["step 5: loss = 5"]

    def test_it_reads_nothing_when_not_due(self, make_view, lines):
        LoggingHook(EverySteps(10)).after_loop(make_view(0, 9))
        assert make_view.reads == []
        assert lines() == []

    def test_the_last_loss_of_a_short_run_is_logged(self, run_loops, lines):
        run_loops([LoggingHook(EverySteps(20))], last_step=5, loop_steps=20, losses=float)
        assert lines() == ["step 5: loss = 5"]

    def test_no_step_is_logged_twice(self, run_loops, lines):
        run_loops([LoggingHook(EverySteps(5))], last_step=10, loop_steps=5, losses=float)
        assert lines() == ["step 5: loss = 5", "step 10: loss = 10"]

    def test_a_run_of_no_steps_logs_nothing(self, run_loops, lines):
        run_loops([LoggingHook(EverySteps(5))], start=7, last_step=7, loop_steps=5)
        assert lines() == []

    def test_a_formatter_is_given_the_values_by_name(self, make_view, lines):
        given = []

        def formatter(values):
            given.append(dict(values))
            return "a line with 100%"

        hook = LoggingHook(EverySteps(1), formatter)
        view = make_view(0, 2, losses=[3, 2], metrics={"accuracy": [0.25, 0.5]})
        hook.after_loop(view)
        hook.end(view)
        assert given == [{"step": 2, "loss": 2.0, "accuracy": 0.5}]
        assert lines() == ["a line with 100%"]

    def test_values_are_chosen_by_name_and_come_in_that_order(self, make_view, lines):
        hook = LoggingHook(EverySteps(1), values=["accuracy", "loss"])
        hook.end(make_view(0, 2, losses=[3, 2], metrics={"f1": [0, 0], "accuracy": [0, 0.5]}))
        assert lines() == ["step 2: accuracy = 0.5, loss = 2"]

    def test_a_formatter_is_given_the_chosen_values(self, make_view, lines):
        hook = LoggingHook(EverySteps(1), str, ["accuracy"])
        hook.end(make_view(0, 1, metrics={"f1": [0], "accuracy": [0.5]}))
        assert lines() == ["{'step': 1, 'accuracy': 0.5}"]

    def test_a_name_that_is_not_there_is_an_error_that_lists_those_that_are(self, make_view):
        hook = LoggingHook(EverySteps(1), values=["acuracy"])
        with pytest.raises(ValueError, match=r"'acuracy'.*\['accuracy', 'loss'\]"):
            hook.end(make_view(0, 1, metrics={"accuracy": [0.5]}))

    @pytest.mark.parametrize("values", ["loss", [np.float32(1)], {"loss": 1.0}.values()])
    def test_values_that_are_no_names_are_refused(self, values):
        with pytest.raises(TypeError, match="values must be a list of names"):
            LoggingHook(EverySteps(1), values=values)

    def test_another_process_than_the_chief_neither_logs_nor_reads(
        self, make_view, make_context, lines
    ):
        hook = LoggingHook(EverySteps(1))
        hook.begin(make_context(is_chief=False))
        hook.after_loop(make_view(0, 1))
        hook.end(make_view(1, 2))
        assert lines() == []
        assert make_view.reads == []

    def test_a_bare_number_as_the_period_is_refused(self):
        with pytest.raises(TypeError, match="got 100"):
            LoggingHook(100)  # pyright: ignore[reportArgumentType]


class TestThroughputHook:
    def test_it_measures_over_the_whole_time_since_the_last_report(
        self, make_view, writer, make_context
    ):
        hook = ThroughputHook(EverySteps(10), writer)
        hook.begin(make_context())
        hook.after_loop(make_view(0, 4, elapsed_secs=1.0, input_wait_secs=0.5, examples=32))
        hook.after_loop(make_view(4, 8, elapsed_secs=2.0, input_wait_secs=0.0, examples=32))
        assert writer.scalars == []
        hook.after_loop(make_view(8, 12, elapsed_secs=5.0, input_wait_secs=1.5, examples=16))
        assert writer.scalars == [
            ("global_step/sec", 12, 12 / 8),
            ("examples/sec", 12, 80 / 8),
            ("input_wait_fraction", 12, 2 / 8),
        ]
        hook.after_loop(make_view(12, 20, elapsed_secs=2.0, input_wait_secs=1.0, examples=64))
        assert writer.scalars[3:] == [
            ("global_step/sec", 20, 4.0),
            ("examples/sec", 20, 32.0),
            ("input_wait_fraction", 20, 0.5),
        ]

    def test_it_logs_without_a_writer(self, make_view, lines):
        hook = ThroughputHook(EverySteps(10))
        hook.after_loop(make_view(0, 10, elapsed_secs=4.0, input_wait_secs=1.0, examples=80))
        assert lines() == [
            "step 10: 2.5 steps/sec, 20 examples/sec, 25% of the time waiting for input"
        ]

    def test_it_never_reads_a_value(self, run_loops, make_view):
        run_loops([ThroughputHook(EverySteps(1))], last_step=10, loop_steps=5)
        assert make_view.reads == []

    def test_time_that_a_coarse_clock_did_not_see_counts_in_the_next_report(
        self, make_view, writer
    ):
        hook = ThroughputHook(EverySteps(5), writer)
        hook.after_loop(make_view(0, 5, elapsed_secs=0.0))
        hook.after_loop(make_view(5, 10, elapsed_secs=2.0))
        assert writer.scalars[0] == ("global_step/sec", 10, 5.0)

    def test_a_period_in_seconds_works_too(self, make_view, writer, clock):
        hook = ThroughputHook(EverySecs(60, clock), writer)
        hook.after_loop(make_view(0, 5, elapsed_secs=30.0))
        clock.advance(60)
        hook.after_loop(make_view(5, 10, elapsed_secs=30.0))
        assert writer.scalars[0] == ("global_step/sec", 10, 10 / 60)

    def test_a_new_run_does_not_count_the_rest_of_the_one_before(
        self, make_view, make_context, writer
    ):
        hook = ThroughputHook(EverySteps(10), writer)
        hook.after_loop(make_view(0, 9, elapsed_secs=100.0))
        hook.begin(make_context(step=9))
        hook.after_loop(make_view(9, 10, elapsed_secs=0.5))
        assert writer.scalars[0] == ("global_step/sec", 10, 2.0)

    def test_another_process_than_the_chief_is_silent(self, make_view, make_context, writer, lines):
        hook = ThroughputHook(EverySteps(1), writer)
        hook.begin(make_context(is_chief=False))
        hook.after_loop(make_view(0, 1))
        assert (writer.scalars, lines()) == ([], [])
