import pytest

from hooks import (
    CheckpointSaverHook,
    EverySecs,
    EverySteps,
    FinalOpsHook,
    FunctionHook,
    Hook,
    HookSequence,
    LambdaHook,
)

METHODS = [name for name, member in vars(Hook).items() if callable(member) and name[0] != "_"]


class TestLambdaHook:
    def test_the_functions_are_called_where_the_methods_would_be(self, run_loops):
        calls = []
        hook = LambdaHook(
            begin=lambda context: calls.append(("begin", context.step)),
            before_loop=lambda step: calls.append(("before_loop", step)),
            after_loop=lambda view: calls.append(("after_loop", view.before, view.step)),
            end=lambda view: calls.append(("end", view.step)),
        )
        run_loops([hook], start=2, last_step=5, loop_steps=2)
        assert calls == [
            ("begin", 2),
            ("before_loop", 2),
            ("after_loop", 2, 4),
            ("before_loop", 4),
            ("after_loop", 4, 5),
            ("end", 5),
        ]

    def test_what_after_loop_returns_stops_the_run(self, run_loops):
        hook = LambdaHook(after_loop=lambda view: "enough" if view.step >= 4 else None)
        assert run_loops([hook], last_step=100, loop_steps=2) == [(0, 2), (2, 4)]

    @pytest.mark.parametrize("method", METHODS)
    def test_there_is_a_function_for_every_method_of_a_hook(self, method):
        def function(*arguments):
            return method, arguments

        hook = LambdaHook(**{method: function})
        assert getattr(hook, method)(1, 2) == (method, (1, 2))

    def test_a_next_step_cuts_the_loop(self, run_loops):
        hook = LambdaHook(next_step=lambda step: 7 if step < 7 else None)
        assert run_loops([hook], last_step=10, loop_steps=5) == [(0, 5), (5, 7), (7, 10)]

    def test_it_is_told_of_saves_and_may_veto_them(self, run_loops, saver):
        told = []
        hook = LambdaHook(
            before_save=lambda view: "not now" if view.step == 4 else None,
            after_save=lambda step, path: told.append((step, path.name)),
        )
        saving = CheckpointSaverHook(saver, [EverySteps(2)], [hook])
        run_loops([hook, saving], last_step=6, loop_steps=2)
        assert saver.saved == [2, 6]
        assert told == [(2, "2"), (6, "6")]

    def test_without_an_after_save_no_write_is_waited_for(self, run_loops, saver):
        hook = LambdaHook(before_save=lambda view: None)
        saving = CheckpointSaverHook(saver, [EverySteps(2)], [hook])
        run_loops([hook, saving], last_step=6, loop_steps=2)
        assert saver.waits == 1  # at the end

    def test_it_hears_of_an_error(self, make_context):
        heard, boom = [], ValueError("boom")
        with pytest.raises(ValueError), HookSequence([LambdaHook(on_error=heard.append)]) as hooks:
            hooks.begin(make_context())
            raise boom
        assert heard == [boom]

    def test_what_is_no_function_is_refused_by_the_name_of_the_method(self):
        with pytest.raises(TypeError, match="after_loop must be a function, got 3"):
            LambdaHook(after_loop=3)  # pyright: ignore[reportArgumentType]

    def test_every_function_may_be_left_out(self, run_loops):
        assert run_loops([LambdaHook()], last_step=5, loop_steps=5) == [(0, 5)]


class TestFunctionHook:
    def test_it_is_called_at_exact_multiples_of_the_step(self, run_loops):
        steps = []
        hook = FunctionHook(lambda view: steps.append(view.step), EverySteps(4))
        run_loops([hook], start=2, last_step=13, loop_steps=5)
        assert steps == [4, 8, 12]

    def test_a_period_in_seconds_cuts_no_loop(self, make_view, clock):
        steps = []
        hook = FunctionHook(lambda view: steps.append(view.step), EverySecs(60, clock))
        assert hook.next_step(0) is None
        for step in (5, 10, 15):
            clock.advance(40)
            hook.after_loop(make_view(step - 5, step))
        assert steps == [10]

    def test_what_it_returns_stops_the_run(self, run_loops):
        hook = FunctionHook(lambda view: "enough", EverySteps(3))
        assert run_loops([hook], last_step=100, loop_steps=50) == [(0, 3)]

    def test_a_bare_number_as_the_period_is_refused(self):
        with pytest.raises(TypeError, match="got 100"):
            FunctionHook(print, 100)  # pyright: ignore[reportArgumentType]


class TestFinalOpsHook:
    def test_the_result_is_computed_from_the_state_at_the_end(self, make_view, make_context):
        hook = FinalOpsHook(lambda state: state["w"] * 2)
        hook.begin(make_context())
        hook.after_loop(make_view(0, 5, state={"w": 1}))
        assert hook.result is None
        hook.end(make_view(5, 10, state={"w": 21}))
        assert hook.result == 42
        assert make_view.reads == [("state", 10)]

    def test_a_run_that_fails_leaves_no_result_of_the_run_before(self, make_view, make_context):
        hook = FinalOpsHook(lambda state: state)
        hook.end(make_view(0, 5))
        hook.begin(make_context(step=5))
        hook.on_error(ValueError())
        assert hook.result is None

    def test_an_error_of_the_function_reaches_the_caller(self, run_loops):
        def fails(state):
            raise KeyError("no such variable")

        with pytest.raises(KeyError, match="no such variable"):
            run_loops([FinalOpsHook(fails)], last_step=5, loop_steps=5)
