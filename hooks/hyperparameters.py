"""Writes down with what settings a run was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from hooks.base import Hook, HookContext


class TextWriter(Protocol):
    """Where texts go: `tensorboardX.SummaryWriter` has this shape."""

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> Any: ...


class HyperparameterSummaryHook(Hook):
    """Writes `params` as a table to TensorBoard's text tab, when a run begins, in the chief.

    Args:
      writer: where the table goes, under the tag `hyperparameters`; whoever made it closes it.
      params: names and values; a mapping as a value is written as `outer.inner`.
    """

    def __init__(self, writer: TextWriter, params: Mapping[str, Any]):
        if not isinstance(params, Mapping):
            raise TypeError(
                f"params must be a dict of names and values, got {type(params).__name__}. "
                "For a dataclass, pass dataclasses.asdict(params)."
            )
        self._writer = writer
        self._params = params

    def begin(self, context: HookContext) -> None:
        if context.is_chief:
            rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in _flat(self._params)]
            table = "\n".join(["| name | value |", "| --- | --- |", *rows])
            self._writer.add_text("hyperparameters", table, context.step)


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _cell(value: Any) -> str:
    # A cell of a Markdown table ends at a bar, and its row at the end of the line.
    return str(value).replace("|", "\\|").replace("\n", " ")
