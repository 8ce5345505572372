"""Tells how full the memory of the devices is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax

from hooks import checks
from hooks.base import Every, Hook, HookContext, LoopView, Writer

logger = logging.getLogger(__name__)

# What XLA's allocators report, where they do, in bytes.
_STATISTICS = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")
_GIB = 2**30


class MemoryHook(Hook):
    """Logs the device memory in use and its peak, in the chief process.

    Writes `memory/bytes_in_use`, `memory/peak_bytes_in_use` and `memory/bytes_limit` too if
    there is a writer. Each is the largest over the devices. Asking does not wait for the
    device. A backend that does not count, such as the CPU's, is told of once.

    Args:
      every: when a report is due.
      writer: where the scalars go besides the log; whoever made it closes it.
      devices: the `jax.Device`s to ask; all those of this process if None.
    """

    def __init__(
        self, every: Every, writer: Writer | None = None, devices: Sequence[Any] | None = None
    ):
        self._every = checks.every(every)
        self._writer = writer
        self._devices = devices
        self._active = True

    def begin(self, context: HookContext) -> None:
        self._active = context.is_chief

    def after_loop(self, view: LoopView) -> None:
        if not self._every.due(view.before, view.step) or not self._active:
            return
        largest = self._largest_statistics()
        if not largest:
            self._active = False
            logger.info("These devices do not say how much of their memory is in use.")
            return
        logger.info(
            "step %d: device memory: %s",
            view.step,
            ", ".join(f"{name} = {value / _GIB:.3f} GiB" for name, value in largest.items()),
        )
        if self._writer is not None:
            for name, value in largest.items():
                self._writer.add_scalar(f"memory/{name}", value, view.step)

    def _largest_statistics(self) -> dict[str, int]:
        devices = jax.local_devices() if self._devices is None else self._devices
        reports = [device.memory_stats() or {} for device in devices]
        return {
            name: max(report[name] for report in reports)
            for name in _STATISTICS
            if all(name in report for report in reports)
        }
