"""Batches from grain, which knows where it stands by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from input_pipeline.positions import check_same_input
from input_pipeline.reader import BatchReader, OwnedIterator
from input_pipeline.source import Position, PositionError

_ADDRESS = re.compile(" at 0x[0-9a-f]+")


def adapt(data: Any, batch_size: int) -> BatchReader | None:
    """Returns a reader of a grain MapDataset, IterDataset or DataLoader of batches."""
    import grain

    if isinstance(data, grain.MapDataset | grain.IterDataset | grain.DataLoader):
        return GrainReader(data, batch_size)
    return None


class GrainReader(BatchReader):
    """Reads batches; the position holds the state of grain's own iterator."""

    def __init__(self, data: Any, batch_size: int):
        self._data = data
        self._batch_size = batch_size
        self._state: Any = None
        self._last: Any = None
        self._iterator = OwnedIterator(self._open, library="grain")

    def next(self) -> tuple[Any] | None:
        element = self._iterator.next()
        if element is not None:
            self._state = _to_json(self._last.get_state())
        return element

    def position(self) -> Position:
        return {"kind": "grain", "batch_size": self._batch_size, "state": self._state}

    def seek(self, position: Position) -> None:
        check_same_input(position, self.position())
        self._state = position["state"]
        self._iterator.restart()

    def close(self) -> None:
        self._iterator.close()

    def _open(self) -> Iterator[Any]:
        self._last = iter(self._data)
        if self._state is not None:
            try:
                self._last.set_state(_from_json(self._state, self._last.get_state()))
            except ValueError as error:
                raise PositionError(
                    f"The saved position belongs to another grain input: {error}"
                ) from error
        return self._last


def _to_json(state: Any) -> Any:
    """Returns a DataLoader's state, which is JSON as bytes, as a string in a list."""
    return [state.decode()] if isinstance(state, bytes) else json.loads(json.dumps(state))


def _from_json(state: Any, fresh: Any) -> Any:
    """Returns the state that was saved, fit for an iterator whose own is `fresh`.

    A DataLoader refuses the state of another data source, which it tells by its repr; where
    that holds an address in memory, as by default, it would refuse the same script run again.
    """
    if not isinstance(state, list):
        return state
    saved, own = (_ADDRESS.findall(text) for text in (state[0], fresh.decode()))
    if len(saved) != len(own):
        return state[0].encode()
    addresses = iter(own)
    return _ADDRESS.sub(lambda _: next(addresses), state[0]).encode()
