"""Checks of the arguments that several hooks take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hooks.base import Every, EverySecs, EverySteps, Hook, HookContext


def positive_int(name: str, value: Any) -> int:
    """Returns `value` as an int if it is a whole number above zero (NumPy's count).

    Raises:
      TypeError: it is no integer.
      ValueError: it is below one.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a positive int, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be a positive int, got {value!r}.")
    return int(value)


def positive_secs(name: str, value: Any) -> float:
    """Returns `value` if it is a positive number of seconds.

    Raises:
      ValueError: it is not.
    """
    return _positive(name, value, "number of seconds")


def positive_hours(name: str, value: Any) -> float:
    """Returns `value` if it is a positive number of hours.

    Raises:
      ValueError: it is not.
    """
    return _positive(name, value, "number of hours")


def _positive(name: str, value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} must be a positive {what}, got {value!r}.")
    return value


def reason(source: str, value: Any) -> str:
    """Returns `value`, which the method `source` of a hook returned, if it is a reason.

    Raises:
      TypeError: it is none.
    """
    if isinstance(value, str) and value:
        return value
    raise TypeError(
        f"{source} returned {value!r}. It must return None, or a string that says why to stop."
    )


def everies(values: Any) -> list[Every]:
    """Returns `values` if they say how often something is due.

    Raises:
      TypeError: they do not, such as one that is not in a list.
    """
    if isinstance(values, EverySteps | EverySecs) or not isinstance(values, Iterable):
        raise TypeError(
            f"every must be a list of EverySteps and EverySecs, got {values!r}. "
            "Write every=[EverySteps(100)]."
        )
    return [every(value) for value in values]


def every(value: Any) -> Every:
    """Returns `value` if it says how often something is due.

    Raises:
      TypeError: it does not, such as a bare number.
    """
    if not isinstance(value, EverySteps | EverySecs):
        raise TypeError(
            f"every must be EverySteps or EverySecs, got {value!r}. "
            "Write every=EverySteps(100), or every=EverySecs(60)."
        )
    return value


def list_of_hooks(name: str, value: Any) -> list[Hook]:
    """Returns `value` as a list if it holds hooks; an empty one for None.

    Raises:
      TypeError: it is no list, or holds something else.
    """
    if value is None:
        return []
    if isinstance(value, Hook) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of hooks, got {value!r}. Write {name}=[...].")
    given = list(value)
    for hook in given:
        if not isinstance(hook, Hook):
            raise TypeError(
                f"{name} must be est.hooks.Hook objects, got {hook!r}. Derive from Hook, and pass "
                "an instance."
            )
    return given


def list_of_save_listeners(name: str, value: Any) -> list[Any]:
    """Returns `value` as a list if it holds what `hooks.SaveListener` describes; an empty one for
    None.

    Raises:
      TypeError: something in it lacks a method.
    """
    listeners = list(value or ())
    for listener in listeners:
        if not (hasattr(listener, "before_save") and hasattr(listener, "after_save")):
            raise TypeError(
                f"{name} must have the methods before_save(view) and after_save(step, path), got "
                f"{listener!r}."
            )
    return listeners


def training(hook: Hook, context: HookContext) -> None:
    """Refuses a run that is no training: elsewhere `LoopView.step` counts batches.

    Raises:
      ValueError: it is none.
    """
    if context.mode != "train":
        raise ValueError(
            f"{type(hook).__name__} is for the steps of training, but the mode is "
            f"{context.mode!r}. Give it to train()."
        )
