"""Writes images for TensorBoard."""

from __future__ import annotations

import os

import numpy as np

from hooks import checks
from hooks.base import Hook, HookContext, LoopView
from hooks.events import EventWriter


class ImageSummaryHook(Hook):
    """Writes images that leave the device through host_call, in the chief process.

        images = est.hooks.ImageSummaryHook()
        return est.EstimatorSpec(
            ...,
            host_call=(images.write, {"digits": features["image"][:3]}),
            training_hooks=[images],
        )

    `RunConfig(host_call_every_n_steps=)` says at which steps. Needs the extra `images`.

    Args:
      max_images: how many of each batch are written.
      folder: where the events go; model_dir if None.
    """

    def __init__(self, max_images: int = 3, folder: str | os.PathLike[str] | None = None):
        self._max_images = checks.positive_int("max_images", max_images)
        self._folder = folder
        self._writer: EventWriter | None = None

    def begin(self, context: HookContext) -> None:
        if context.is_chief:
            self._writer = EventWriter(self._folder or context.model_dir)

    def write(self, step: int, **images: np.ndarray) -> None:
        """Writes the first images of each batch, as `name/0`, `name/1`, ...

        Args:
          step: the global step.
          **images: `[batch, height, width]` or `[batch, height, width, channels]`, of 1, 3 or 4
            channels; floats from 0 to 1, or uint8.

        Raises:
          ValueError: an array of another shape.
        """
        for name, batch in images.items():
            batch = np.asarray(batch)
            if batch.ndim not in (3, 4) or (batch.ndim == 4 and batch.shape[3] not in (1, 3, 4)):
                raise ValueError(
                    f"The images {name!r} have the shape {list(batch.shape)}; expected [batch, "
                    "height, width] or [batch, height, width, channels] of 1, 3 or 4 channels."
                )
            if self._writer is not None:
                for index, image in enumerate(batch[: self._max_images]):
                    self._writer.add_image(f"{name}/{index}", image, step)

    def end(self, view: LoopView) -> None:
        self._close()

    def on_error(self, error: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
