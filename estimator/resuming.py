"""The input of a training run, from where its checkpoint left it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from etils import epath

from estimator import checkpoints, input_positions
from estimator.input_config import Resume
from estimator.job import Job
from estimator.opening import open_input
from estimator.spec import ModeKeys
from hooks import StopNotices
from input_pipeline import PositionError, RegroupedInputError, Source

logger = logging.getLogger(__name__)


def resumed_input(
    job: Job,
    input_fn: Callable[..., Any],
    batch_size: int,
    checkpoint: epath.Path | None,
    notices: StopNotices,
    stack: contextlib.ExitStack,
) -> Source:
    """Opens the input where `checkpoint` left it; from its start if it was at its end, or is
    another one, on any process, or if the config says so.

    Args:
      job: of the run.
      input_fn: of the user.
      batch_size: of the run.
      checkpoint: that it starts from, if any.
      notices: that tell it to stop.
      stack: closes what is opened.

    Raises:
      PositionError: the input is another one, or read by another number of processes, and the
        config wants it to go on exactly.
      Also what `open_input` does.
    """
    position = None
    if checkpoint is not None and job.config.input_resume == Resume.CONTINUE:
        position = checkpoints.input_position(checkpoint)
    starts_anew = False

    def opened() -> Source:
        source = job.open_source(input_fn, ModeKeys.TRAIN, batch_size)
        stack.callback(source.close)
        if job.config.require_exact_resume and source.seeks_by_reading:
            raise ValueError(
                "require_exact_resume=True, but this input has no position: a run that goes on "
                "would read and drop what came before, and trust that it comes again in the same "
                "order. Use a Dataset of arrays or of a random access source, or grain."
            )
        return source

    def resumed() -> Source:
        nonlocal starts_anew
        source = opened()
        if checkpoint is not None and position is not None:
            starts_anew = not _goes_on(job, source, checkpoint, position)
        return source

    source = open_input(job, resumed, checkpoint, notices)
    if job.hosts.any("input that starts anew", starts_anew):
        source = open_input(job, opened, checkpoint, notices)
    return source


def _goes_on(job: Job, source: Source, checkpoint: epath.Path, position: Any) -> bool:
    """Brings the source to the position; says whether there is something left to read."""
    index, count = (0, 1) if job.scatters else (job.hosts.index, job.hosts.count)
    try:
        source.seek(input_positions.of_process(position, index, count))
    except PositionError as error:
        if job.config.require_exact_resume or isinstance(error, RegroupedInputError):
            error.add_note(
                f"The position is that of {checkpoint}. RunConfig(input_resume='restart') starts "
                "the input at its beginning."
            )
            raise
        logger.warning("The input is not the one of %s and starts anew: %s", checkpoint, error)
        return False
    if source.at_end():
        logger.info("The input of %s was at its end and starts anew.", checkpoint)
        return False
    return True
