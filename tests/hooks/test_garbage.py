import gc

import pytest

from hooks import EverySteps, GarbageCollectHook, LambdaHook


@pytest.fixture(autouse=True)
def collector_enabled():
    gc.enable()
    yield
    gc.enable()


@pytest.fixture
def collections(monkeypatch):
    calls = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append(gc.isenabled()))
    return calls


def test_garbage_is_collected_when_due_and_not_otherwise(collections, run_loops):
    enabled = []
    watch = LambdaHook(before_loop=lambda step: enabled.append(gc.isenabled()))
    run_loops([GarbageCollectHook(EverySteps(10)), watch], last_step=25, loop_steps=5)
    assert len(collections) == 2
    assert enabled == [False] * 5


@pytest.mark.parametrize("was_enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_is_as_before_when_the_run_has_ended(run_loops, was_enabled, fails):
    if not was_enabled:
        gc.disable()

    def after_loop(view):
        if fails:
            raise ValueError("bad record")

    hooks = [GarbageCollectHook(EverySteps(10)), LambdaHook(after_loop=after_loop)]
    if fails:
        with pytest.raises(ValueError, match="bad record"):
            run_loops(hooks, last_step=5, loop_steps=5)
    else:
        run_loops(hooks, last_step=5, loop_steps=5)
    assert gc.isenabled() == was_enabled
