"""The hooks of one run, called together and in order."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence

from hooks import checks
from hooks.base import Hook, HookContext, LoopView

logger = logging.getLogger(__name__)


class HookSequence:
    """Runs hooks in the order given; a context manager around the whole run.

    If the run ends by an error, every hook whose `begin` was called hears of it through
    `on_error`. An error there is added to the first one as a note and never replaces it.

    Raises:
      ValueError: a hook is given twice, and would count everything twice.
    """

    def __init__(self, hooks: Sequence[Hook]):
        self._hooks = list(hooks)
        for index, hook in enumerate(self._hooks):
            if any(hook is earlier for earlier in self._hooks[:index]):
                raise ValueError(
                    f"The hook {hook!r} is given twice. Give each hook once, in hooks= or in the "
                    "EstimatorSpec."
                )
        self._begun: list[Hook] = []

    def __enter__(self) -> HookSequence:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        for hook in self._begun:
            try:
                hook.on_error(error)
            except Exception as another:
                error.add_note(
                    f"{type(hook).__name__}.on_error failed too: "
                    f"{type(another).__name__}: {another}"
                )

    def begin(self, context: HookContext) -> bool:
        """Calls every hook's `begin`; says whether one of them asks not to run."""
        stop = False
        for hook in self._hooks:
            self._begun.append(hook)
            stop |= _asks_to_stop(hook, "begin", hook.begin(context), context.step)
        return stop

    def loop_end(self, step: int, at_most: int) -> int:
        """Returns where a loop that starts at `step` has to end: at `at_most`, or earlier
        where a hook asks for an exact step."""
        end = at_most
        for hook in self._hooks:
            wanted = hook.next_step(step)
            if wanted is None:
                continue
            if isinstance(wanted, bool) or not hasattr(wanted, "__index__"):
                raise TypeError(
                    f"{type(hook).__name__}.next_step returned {wanted!r}. It must return the "
                    "global step, an int, at which the hook next needs control, or None."
                )
            wanted = operator.index(wanted)  # a NumPy integer counts
            if wanted > step:
                end = min(end, wanted)
        return end

    def before_loop(self, step: int) -> bool:
        """Calls every hook's `before_loop`; says whether one of them asks to stop."""
        stop = False
        for hook in self._hooks:
            stop |= _asks_to_stop(hook, "before_loop", hook.before_loop(step), step)
        return stop

    def after_loop(self, view: LoopView) -> bool:
        """Calls every hook's `after_loop`; says whether one of them asks to stop."""
        stop = False
        for hook in self._hooks:
            stop |= _asks_to_stop(hook, "after_loop", hook.after_loop(view), view.step)
        return stop

    def end(self, view: LoopView) -> None:
        """Calls every hook's `end`."""
        for hook in self._hooks:
            hook.end(view)


def _asks_to_stop(hook: Hook, method: str, reason: object, step: int) -> bool:
    if reason is None:
        return False
    why = checks.reason(f"{type(hook).__name__}.{method}", reason)
    logger.info("Stop at step %d: %s.", step, why.rstrip("."))
    return True
