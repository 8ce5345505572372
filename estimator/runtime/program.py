"""A function that compiles itself for what it is fed, as one made by `jax.jit` does."""

from __future__ import annotations

import functools
from typing import Any

from estimator.runtime.callable import Callable
from estimator.runtime.executable import Executable
from estimator.runtime.recipe import Recipe
from estimator.runtime.table import ProgramTable
from estimator.runtime.waiting import Deadline, Waits


class Program:
    """A function and its options, compiled by its session once for each signature of feeds.

    `Session.program` makes it, and it is called like the function. It tries what it ran last,
    and looks for another only when JAX says that the feeds do not fit, so that a loop which
    feeds the same shapes again and again pays for no look-up. What it compiled the session
    keeps to its end.
    """

    def __init__(
        self, recipe: Recipe, table: ProgramTable, waits: Waits, timeout_secs: float | None
    ):
        self._recipe = recipe
        self._table = table
        self._waits = waits
        self._timeout_secs = timeout_secs
        self._latest: Executable | None = None

    def __call__(self, *feeds: Any) -> Any:
        """Runs the function, compiling it first if these feeds are the first of their kind.

        Args:
          *feeds: arrays, scalars, or pytrees of them, one for each positional argument.

        Returns:
          The outputs, or what is fetched of them, as soon as the devices have the program;
          if the session has a timeout, when they are computed.

        Raises:
          FeedError: a feed is no array, or lies where the session has no device.
          DeadlineExceededError: the outputs did not come in time. The devices go on.
          CancelledError: the session was closed meanwhile. The devices go on.
          SessionClosedError: it was closed before.
          Whatever the function raises when it is traced.
        """
        latest = self._latest
        if latest is None:
            latest = self._latest = self._find(feeds)
        try:
            return self._run(latest, feeds)
        except (TypeError, ValueError) as error:
            refusal = error
        try:
            fitting = self._find(feeds)
            if fitting is latest:
                raise refusal  # which was not about the feeds
        finally:
            del refusal  # it holds this frame, and with it the feeds
        self._latest = fitting
        return self._run(fitting, feeds)

    def _find(self, feeds: tuple[Any, ...]) -> Executable:
        signature = self._recipe.signature(feeds)
        return self._table.find(self._recipe, signature, Deadline(self._timeout_secs), hold=False)

    def _run(self, executable: Executable, feeds: tuple[Any, ...]) -> Any:
        if self._timeout_secs is None:
            return executable.start(*feeds)
        return self._waits.run(
            functools.partial(executable.finish, *feeds),
            Deadline(self._timeout_secs),
            f"running {self._recipe.names.function}",
        )

    def make_callable(self, *feeds: Any) -> Callable:
        """Compiles for feeds like these, unless that was done, and runs nothing.

        Args:
          *feeds: arrays, or `jax.ShapeDtypeStruct`s in their place.

        Raises:
          As `Session.make_callable`.
        """
        signature = self._recipe.signature(feeds)
        executable = self._table.find(
            self._recipe, signature, Deadline(self._timeout_secs), hold=True
        )
        release = functools.partial(self._table.release, self._recipe, signature)
        return Callable(
            self._recipe.names.function, executable, self._waits, self._timeout_secs, release
        )
