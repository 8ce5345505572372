"""What a run that was told to go raises, once nothing would be lost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from etils import epath

from hooks import PREEMPTED_EXIT_CODE, StopNotice

logger = logging.getLogger(__name__)


class PreemptedError(SystemExit):
    """The machine was to go, and the run has ended with its state saved; the same script goes on
    from there.

    As a SystemExit it ends a script with exit code 143 and without a traceback, through every
    `except Exception`; catch it by its name to do something else.

    Attributes:
      why: such as "SIGTERM was received".
      step: the global step that was reached.
      path: the checkpoint to go on from, or None if there is none.
    """

    def __init__(self, why: str, step: int, path: epath.Path | None):
        super().__init__(PREEMPTED_EXIT_CODE)
        self.why = why
        self.step = step
        self.path = path

    def __str__(self) -> str:
        where = "the start" if self.path is None else f"step {self.step}, {self.path}"
        return f"The run stopped since {self.why}; training goes on from {where}."


def stop_error(notice: StopNotice, step: int, path: epath.Path | None) -> BaseException:
    """Returns what to raise in a run that `notice` has ended: KeyboardInterrupt for Ctrl-C."""
    return KeyboardInterrupt() if notice.interrupt else PreemptedError(notice.why, step, path)


@contextlib.contextmanager
def exit_on_preemption() -> Iterator[None]:
    """Logs why and where a preempted run within it has stopped, as a warning, and ends the script
    with code 143.

        with est.exit_on_preemption():
            model.train(input_fn, max_steps=10_000)

    A `PreemptedError` ends a script with that code by itself, without a word.

    Raises:
      SystemExit: in place of the PreemptedError.
    """
    try:
        yield
    except PreemptedError as error:
        logger.warning("%s", error)
        raise SystemExit(error.code) from error
