import pytest

from hooks import FinalOpsHook, LambdaHook


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

    def test_every_function_may_be_left_out(self, run_loops):
        assert run_loops([LambdaHook()], last_step=5, loop_steps=5) == [(0, 5)]


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
