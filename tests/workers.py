"""How the tests start worker processes of torch."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext


def context() -> BaseContext:
    """Returns a way that does not fork the process of the tests: other libraries have threads in
    it, so that its child may crash."""
    forkserver = multiprocessing.get_context("forkserver")
    # Imported once, in the server, and not in each of its workers.
    forkserver.set_forkserver_preload(["torch.utils.data", "input_pipeline"])
    return forkserver
