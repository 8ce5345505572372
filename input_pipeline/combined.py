"""Several sources read in step, as one source of larger batches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from input_pipeline.batching import pad
from input_pipeline.layout import leaf_name
from input_pipeline.positions import LazyPositions
from input_pipeline.source import Position, RegroupedInputError, Source, Stack

_KIND = "combined"


class CombinedSource(Source):
    """Joins batch k of each source into batch k of its own, in the order of the sources.

    Sources may end at different times and in partial batches: a batch holds the examples that
    there are, one source's behind the other's, and the end comes when all have ended. So every
    example is read once.

    They are read one after the other, on the thread that reads this one: all together, that is
    as much work as one source of the larger batches would have. An error of a source has a note
    that says which one it was.

    Args:
      sources: at least one; they are closed with this one.

    Raises:
      ValueError: they have different tables.
    """

    def __init__(self, sources: Sequence[Source]):
        self._parts = [_Part(source, index, len(sources)) for index, source in enumerate(sources)]
        self.batch_size = sum(source.batch_size for source in sources)
        self.seeks_by_reading = any(source.seeks_by_reading for source in sources)
        self.shapes_vary = any(source.shapes_vary for source in sources)
        self.common_position = all(source.common_position for source in sources)
        self.table = sources[0].table
        if any(source.table is not self.table for source in sources):
            raise ValueError(
                "The input pipelines have different data that should stay on the devices. Make one "
                "Dataset.from_arrays(..., device_resident=True) outside of input_fn, and return a "
                "shard of it from each call."
            )

    @property
    def host_column_names(self) -> tuple[str, ...]:
        names = (part.source.host_column_names for part in self._parts)
        return next((found for found in names if found), ())

    def element_spec(self) -> tuple[Any, Any]:
        specs = [part.call(part.source.element_spec) for part in self._parts]
        found = [
            (part, spec)
            for part, spec in zip(self._parts, specs, strict=True)
            if spec[0] is not None
        ]
        if not found:
            return None, None
        first, spec = found[0]
        if not self.shapes_vary:
            for part, other in found[1:]:
                _check_alike(first, spec, part, other, dims=1)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.batch_size, *leaf.shape[1:]), leaf.dtype), spec
        )

    def num_batches(self) -> int | None:
        numbers = [part.num_batches() for part in self._parts]
        known = [number for number in numbers if number is not None]
        return max(known) if len(known) == len(numbers) else None

    def at_end(self) -> bool:
        return all(part.at_end() for part in self._parts)

    def read(
        self, count: int, *, capacity: int | None = None, fill_secs: float | None = None
    ) -> Stack | None:
        deadline = None if fill_secs is None else time.monotonic() + fill_secs
        capacity = capacity or count
        count = min(count, capacity)
        for part in self._parts:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            part.fill(count, left)
        live = [part for part in self._parts if part.left]
        if not live:
            return None
        steps = min(count, *(part.left for part in live))
        for part in live[1:]:
            _check_alike(live[0], live[0].arrays, part, part.arrays, dims=2)
        stack = self._joined(live, steps, capacity)
        for part in live:
            part.use(steps)
        return stack

    def position(self) -> Position:
        return self._common([part.position() for part in self._parts])

    def seek(self, position: Position) -> None:
        positions = [position] * len(self._parts)
        if position.get("kind") == _KIND:
            positions = position["positions"]
        if len(positions) != len(self._parts):
            raise RegroupedInputError(
                f"The saved position is that of {len(positions)} input pipelines, and here are "
                f"{len(self._parts)}. Use as many, or Dataset.shard as the last change of the "
                "order, whose position holds for any number."
            )
        for part, own in zip(self._parts, positions, strict=True):
            part.seek(own)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:  # all, even if one of them fails
            for part in self._parts:
                closing.callback(part.source.close)

    def _joined(self, live: Sequence[_Part], steps: int, capacity: int) -> Stack:
        rows = np.stack([part.rows(steps) for part in live])
        full = rows.sum() == steps * self.batch_size
        joined = []
        for sources in zip(*(part.leaves(steps) for part in live), strict=True):
            shape = (capacity, self.batch_size, *sources[0].shape[2:])
            target = np.empty(shape, sources[0].dtype)
            if full:
                np.concatenate(sources, axis=1, out=target[:steps])
            else:
                _join_partial(sources, rows, target)
            joined.append(target)
        structure = jax.tree.structure(live[0].arrays)
        features, labels = jax.tree.unflatten(structure, joined)
        positions = [part.positions(steps) for part in self._parts]
        return Stack(
            features=features,
            labels=labels,
            rows=rows.sum(axis=0, dtype=np.int32),
            positions=LazyPositions(
                range(steps), lambda step: self._common([each[step] for each in positions])
            ),
            host_columns=_join_columns([part.host_columns(steps) for part in live], steps),
        )

    def _common(self, positions: list[Position]) -> Position:
        first = positions[0]
        shared = self.common_position and all(other == first for other in positions)
        return first if shared else {"kind": _KIND, "positions": positions}


class _Part:
    """One of the sources, and what of its last stack is not used yet."""

    def __init__(self, source: Source, index: int, count: int):
        self.source = source
        self.name = f"input pipeline {index} of {count}"
        self._stack: Stack | None = None
        self._used = 0
        self._position: Position | None = None

    def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Calls a method of the source; an error gets a note that says whose it is."""
        try:
            return function(*arguments, **options)
        except Exception as error:
            note = f"This was in {self.name}."
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise

    @property
    def left(self) -> int:
        """Batches of the stack that are not used yet."""
        return 0 if self._stack is None else self._stack.steps - self._used

    @property
    def arrays(self) -> tuple[Any, Any]:
        """(features, labels) of the stack."""
        assert self._stack is not None
        return self._stack.features, self._stack.labels

    def fill(self, count: int, fill_secs: float | None) -> None:
        """Reads a stack if nothing is left of the last one."""
        if not self.left:
            self._position = self.call(self.source.position)
            self._stack = self.call(self.source.read, count, fill_secs=fill_secs)
            self._used = 0

    def use(self, steps: int) -> None:
        assert self._stack is not None
        self._used += steps
        self._position = self._stack.positions[self._used - 1]

    def rows(self, steps: int) -> np.ndarray:
        assert self._stack is not None
        return self._stack.rows[self._used : self._used + steps]

    def leaves(self, steps: int) -> list[np.ndarray]:
        return [leaf[self._used : self._used + steps] for leaf in jax.tree.leaves(self.arrays)]

    def host_columns(self, steps: int) -> Sequence[Mapping[str, np.ndarray]]:
        assert self._stack is not None
        return self._stack.host_columns[self._used : self._used + steps]

    def positions(self, steps: int) -> Sequence[Position]:
        """Returns where the source stands after each of the next batches."""
        if not self.left:
            return [self.position()] * steps
        assert self._stack is not None
        return self._stack.positions[self._used : self._used + steps]

    def position(self) -> Position:
        """Returns where the source stands after what was used of it."""
        return self.call(self.source.position) if self._position is None else self._position

    def seek(self, position: Position) -> None:
        self.call(self.source.seek, position)
        self._stack, self._used, self._position = None, 0, None

    def num_batches(self) -> int | None:
        number = self.source.num_batches()
        return None if number is None else self.left + number

    def at_end(self) -> bool:
        return not self.left and self.call(self.source.at_end)


def _join_partial(sources: Sequence[np.ndarray], rows: np.ndarray, target: np.ndarray) -> None:
    """Puts the first `rows[source, step]` examples of each `[steps, batch, ...]` behind those of
    the sources before it, and pads."""
    for step in range(rows.shape[1]):
        filled = 0
        for source, count in zip(sources, rows[:, step], strict=True):
            target[step, filled : filled + count] = source[step, :count]
            filled += int(count)
        pad(target[step], filled)


def _join_columns(
    columns: Sequence[Sequence[Mapping[str, np.ndarray]]], steps: int
) -> list[dict[str, np.ndarray]]:
    if not columns[0]:
        return []
    return [
        {name: np.concatenate([each[step][name] for each in columns]) for name in columns[0][step]}
        for step in range(steps)
    ]


def _check_alike(one: _Part, first: Any, other: _Part, second: Any, *, dims: int) -> None:
    """Refuses two sources whose batches differ.

    Args:
      one: a source.
      first: its (features, labels), as arrays or their specs.
      other: another source.
      second: its (features, labels).
      dims: leading dimensions that are not compared.

    Raises:
      ValueError: structure, dtype or trailing shape differ; names leaf and sources.
    """
    expected, got = _described(first, dims), _described(second, dims)
    for name in {**expected, **got}:
        if expected.get(name) != got.get(name):
            raise ValueError(
                f"{name} differs between the input pipelines: {one.name} has "
                f"{expected.get(name, 'none')}, {other.name} has {got.get(name, 'none')}. All "
                "calls of input_fn must give batches that are alike."
            )


def _described(pair: tuple[Any, Any], dims: int) -> dict[str, str]:
    return {
        leaf_name(path): f"{leaf.dtype} [{', '.join(map(str, ('batch', *leaf.shape[dims:])))}]"
        for path, leaf in jax.tree_util.tree_leaves_with_path(pair)
    }
