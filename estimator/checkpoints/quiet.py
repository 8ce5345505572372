"""Keeps orbax from talking about itself, forty lines a checkpoint, in the log of the user."""

from __future__ import annotations

import logging
import os

_ORBAX = os.path.join("orbax", "checkpoint")


class _NoOrbaxChat(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        from absl import logging as absl_logging

        asked_for = absl_logging.get_absl_logger().level != logging.NOTSET
        return asked_for or record.levelno > logging.INFO or _ORBAX not in record.pathname


_no_orbax_chat = _NoOrbaxChat()


def hush_orbax() -> None:
    """Drops orbax's INFO lines, unless the user has given absl's logger a level of its own."""
    from absl import logging as absl_logging

    absl_logging.get_absl_logger().addFilter(_no_orbax_chat)  # a second time changes nothing
