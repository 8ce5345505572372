"""One compiled program, ready to run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from estimator.runtime.counters import Tally
from estimator.runtime.errors import FeedError
from estimator.runtime.metadata import RunMetadata, describe
from estimator.runtime.signature import ArraySpec, Signature


class Executable:
    """A program for feeds of one signature.

    JAX itself finds out whether the feeds fit, and only if they do not is it worth a look
    which one it is (`mismatch`). So starting it costs hardly more than the call of a jitted
    function.

    Args:
      compiled: by JAX.
      compile_secs: seconds that this took.
      signature: of the feeds that it was compiled for.
      tally: where to count runs.
    """

    def __init__(
        self,
        compiled: jax.stages.Compiled,
        compile_secs: float,
        signature: Signature,
        tally: Tally,
    ):
        positional, _ = compiled.input_shardings
        bytes_out = sum(ArraySpec.of(leaf).nbytes for leaf in jax.tree.leaves(compiled.out_info))
        self._signature = signature.placed(positional)
        self._count_run = tally.meter(signature.nbytes, bytes_out).ran
        self._call: Callable[..., Any] = compiled
        self._describe: Callable[[], RunMetadata] = functools.partial(
            describe, compiled, compile_secs
        )

    def start(self, *feeds: Any) -> Any:
        """Hands the program to the devices and returns its outputs, as a jitted function would.

        Raises:
          TypeError, ValueError: by JAX, if the feeds do not fit; nothing was run or donated.
        """
        outputs = self._call(*feeds)
        self._count_run()
        return outputs

    def finish(self, *feeds: Any) -> Any:
        """As `start`, but returns when the outputs are computed."""
        return jax.block_until_ready(self.start(*feeds))

    def mismatch(self, feeds: tuple[Any, ...]) -> FeedError | None:
        """Returns an error that names what does not fit in `feeds`, or None if all fits."""
        return self._signature.mismatch(feeds)

    def metadata(self) -> RunMetadata:
        """Returns what the compiler tells about the program."""
        return self._describe()

    def end(self, make_error: Callable[[], Exception]) -> None:
        """Frees the program; whoever still asks it for something gets what `make_error` makes."""

        def refuse(*feeds: Any) -> Any:
            raise make_error()

        self._call = self._describe = refuse
