"""Hooks made of plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hooks.base import Hook, HookContext, LoopView


class LambdaHook(Hook):
    """Calls the given functions at the four moments that most hooks need; for the others, such
    as a save, derive from `Hook`.

    Args:
      begin: called with the `HookContext` before the first loop.
      before_loop: called with the global step before each loop.
      after_loop: called with the `LoopView` after each loop; may return a reason to stop.
      end: called with the last `LoopView` if the run ended without an error.
    """

    def __init__(
        self,
        *,
        begin: Callable[[HookContext], Any] | None = None,
        before_loop: Callable[[int], Any] | None = None,
        after_loop: Callable[[LoopView], str | None] | None = None,
        end: Callable[[LoopView], Any] | None = None,
    ):
        self._begin = begin
        self._before_loop = before_loop
        self._after_loop = after_loop
        self._end = end

    def begin(self, context: HookContext) -> None:
        if self._begin is not None:
            self._begin(context)

    def before_loop(self, step: int) -> None:
        if self._before_loop is not None:
            self._before_loop(step)

    def after_loop(self, view: LoopView) -> str | None:
        return None if self._after_loop is None else self._after_loop(view)

    def end(self, view: LoopView) -> None:
        if self._end is not None:
            self._end(view)


class FinalOpsHook(Hook):
    """Computes something from the state in which a run ends.

    Args:
      fn: called with the final train state, a copy that is its own to keep.

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
