"""Hooks made of plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etils import epath

from hooks import checks
from hooks.base import Every, Hook, HookContext, LoopView


class LambdaHook(Hook):
    """Calls the given functions where a hook's methods of these names are called.

    What a function is given, and what comes of what it returns, is told at the method of
    `Hook`. Training waits for the write of checkpoints only if there is an `after_save`.
    """

    def __init__(
        self,
        *,
        begin: Callable[[HookContext], str | None] | None = None,
        next_step: Callable[[int], int | None] | None = None,
        before_loop: Callable[[int], str | None] | None = None,
        after_loop: Callable[[LoopView], str | None] | None = None,
        before_save: Callable[[LoopView], str | None] | None = None,
        after_save: Callable[[int, epath.Path], Any] | None = None,
        end: Callable[[LoopView], Any] | None = None,
        on_error: Callable[[BaseException], Any] | None = None,
    ):
        functions = {
            "begin": begin,
            "next_step": next_step,
            "before_loop": before_loop,
            "after_loop": after_loop,
            "before_save": before_save,
            "after_save": after_save,
            "end": end,
            "on_error": on_error,
        }
        for method, function in functions.items():
            if function is None:
                continue
            if not callable(function):
                raise TypeError(f"{method} must be a function, got {function!r}.")
            setattr(self, method, function)  # this object's own method from now on


class FunctionHook(Hook):
    """Calls a function every so often. (What a run is fed with comes from input_fn alone: a
    FeedFnHook of old becomes a part of that.)

    Args:
      fn: called with the `LoopView` of the loop after which it is due; may return a reason to
        stop.
      every: when it is due. Loops are cut at the multiples of `EverySteps`, so that it sees
        the run at these exact steps.
    """

    def __init__(self, fn: Callable[[LoopView], str | None], every: Every):
        self._fn = fn
        self._every = checks.every(every)

    def next_step(self, step: int) -> int | None:
        return self._every.next_step(step)

    def after_loop(self, view: LoopView) -> str | None:
        return self._fn(view) if self._every.due(view.before, view.step) else None


class FinalOpsHook(Hook):
    """Computes something from the state in which a run ends.

    Args:
      fn: called with the final train state, a copy that is its own to keep; in evaluate and
        predict with the variables of the model.

    Attributes:
      result: what `fn` returned; None until a run has ended without an error.
    """

    def __init__(self, fn: Callable[[Any], Any]):
        self._fn = fn
        self.result: Any = None

    def begin(self, context: HookContext) -> None:
        self.result = None

    def end(self, view: LoopView) -> None:
        self.result = self._fn(view.state())
