"""One prediction run: results stream out in input order while the next batches are computed."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from estimator.errors import Rendezvous
from estimator.feeding import AnyInfeed, batch_spec, start_infeed
from estimator.infeed import Piece
from estimator.job import Job
from estimator.opening import open_input
from estimator.outfeed import Outfeed
from estimator.outline import Outline
from estimator.spec import ModeKeys
from estimator.steps import Frozen
from estimator.watchdog import Doing
from hooks import Hook, HookContext, HookSequence, LoopView
from input_pipeline import ClosableQueue

logger = logging.getLogger(__name__)

_DISPATCHES_AHEAD = 2

_Yielded = tuple[slice | np.ndarray, Mapping[str, np.ndarray]]
"""Which rows of a batch this process yields, and the columns of them that stayed on the host."""


def predict(
    job: Job,
    input_fn: Callable[..., Any],
    *,
    batch_size: int,
    keys: tuple[str, ...] | None,
    hooks: Sequence[Hook],
    find_checkpoint: Callable[[], epath.Path | None],
    gather: bool,
) -> Generator[Any]:
    """Yields the predictions of batch after batch: a pytree of arrays `[rows, ...]`, without
    padding, beside the columns of features that stayed on the host. On many processes those are
    of this one's input, or all of them on process 0. The checkpoint is looked for when the first
    one is asked for.

    See `Estimator.predict` for what is raised.
    """
    mode = ModeKeys.PREDICT
    with job.hosts.together(), contextlib.ExitStack() as stack:
        source = open_input(
            job,
            lambda: stack.enter_context(
                contextlib.closing(job.open_source(input_fn, mode, batch_size))
            ),
        )
        spec = batch_spec(job, source, mode)
        if spec is None:
            logger.warning(
                "input_fn produced no batches, so there are no predictions. An input that drops "
                "its remainder has none if there are fewer examples than batch_size=%d.",
                batch_size,
            )
            return
        frozen, outline = job.frozen(mode, spec, find_checkpoint())
        columns = job.hosts.gather("columns on the host", source.host_column_names)
        chosen = _Chosen.of(keys, outline, max(columns, key=len))  # an empty input has none
        with HookSequence([*hooks, *outline.hooks]) as sequence:
            with Rendezvous() as rendezvous:
                infeed = start_infeed(job, source, rendezvous, mode, spec, outline, limit=None)
                loop = PredictionLoop(job, frozen, chosen, rendezvous, gather=gather)
                context = job.hook_context(mode, batch_size, step=0, last_step=None)
                yield from loop.run(infeed, sequence, context)
            sequence.end(loop.view)


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """What is yielded.

    Attributes:
      keys: of the predictions to compute; None for all of them, whatever their structure.
      columns: of the features, which stayed on the host.
    """

    keys: tuple[str, ...] | None
    columns: tuple[str, ...]

    @classmethod
    def of(
        cls, wanted: tuple[str, ...] | None, outline: Outline, columns: tuple[str, ...]
    ) -> _Chosen:
        """Returns what of predictions and columns is `wanted` (None: all).

        Raises:
          ValueError: a wanted one does not exist, or the two do not go into one dict.
        """
        predictions = outline.predictions
        names = sorted(predictions) if isinstance(predictions, Mapping) else []
        if columns and not names:
            raise ValueError(
                f"The features {list(columns)} hold no numbers and would be yielded beside the "
                f"predictions, which are no dict but a {type(predictions).__name__}. Return a dict "
                "of predictions from model_fn, or leave them out of what input_fn returns."
            )
        if shared := sorted(set(names) & set(columns)):
            raise ValueError(
                f"The features {shared} hold no numbers and would be yielded beside the "
                "predictions, which have the same names. Rename one or the other."
            )
        if wanted is None:
            return cls(None, columns)
        known = [*names, *columns]
        unknown = [key for key in wanted if key not in known]
        if unknown:
            raise ValueError(
                f"predict_keys={list(wanted)}: the predictions have no {unknown}. They have "
                f"{known}."
            )
        return cls(
            tuple(key for key in wanted if key in names),
            tuple(key for key in wanted if key in columns),
        )

    def beside(self, predictions: Any, columns: Mapping[str, np.ndarray]) -> Any:
        """Returns the predictions of a batch with the chosen ones of its columns."""
        if not self.columns:
            return predictions
        return {**predictions, **{name: columns[name] for name in self.columns}}


class PredictionLoop:
    """Predicts with frozen variables over the batches of an infeed.

    At most two dispatches are ahead of the consumer, so memory does not grow with the data.

    Args:
      job: what to predict with.
      frozen: its variables.
      chosen: what to yield.
      rendezvous: owns the threads.
      gather: whether process 0 yields the predictions of all processes; else each its own.

    Attributes:
      view: of the last loop.
    """

    def __init__(
        self,
        job: Job,
        frozen: Frozen,
        chosen: _Chosen,
        rendezvous: Rendezvous,
        *,
        gather: bool,
    ):
        self._job = job
        self._chosen = chosen
        self._gather = gather and job.hosts.count > 1
        self._program = job.programs.predict(chosen.keys, gathers=self._gather)
        self._frozen = frozen
        self._carry = job.placement.replicate(np.int32(0))
        self._batches = 0
        self._results: ClosableQueue[tuple[Any, list[_Yielded | None]]] = ClosableQueue(
            _DISPATCHES_AHEAD, name="predictions"
        )
        rendezvous.owns(self._results)
        self._outfeed = Outfeed(
            rendezvous, "predict outfeed", self._deliver, read=job.placement.read_local_rows
        )
        self._watchdog = job.watchdog(rendezvous)

    def run(self, infeed: AnyInfeed, hooks: HookSequence, context: HookContext) -> Iterator[Any]:
        """Yields the predictions of each batch until the infeed ends or a hook asks to stop."""
        self.view = self._view(infeed, 0, None)
        hosts, steps = self._job.hosts, self._job.config.steps_per_dispatch
        ahead = 0
        watchdog = self._watchdog
        watchdog.begins(Doing.HOOKS)
        stop, ended = hooks.begin(context), False
        while True:
            # With results under way, never wait for input that is not there yet.
            while not ended and ahead < _DISPATCHES_AHEAD and (ahead == 0 or infeed.ready):
                before = self._batches
                wanted = before if stop else hooks.loop_end(before, before + steps)
                target = int(hosts.agree(f"prediction of batch {before}", wanted).min())
                watchdog.begins(Doing.INPUT)
                piece = infeed.take(target - before) if target > before else None
                watchdog.begins(Doing.HOOKS)
                if piece is None or hosts.any(
                    f"start of batch {before}", hooks.before_loop(before)
                ):
                    ended = True
                else:
                    stop = self._dispatch(piece, infeed, hooks)
                    ahead += 1
            if ahead == 0:
                break
            watchdog.begins(Doing.DEVICES)
            arrays, batches = self._next_result()
            ahead -= 1
            watchdog.rests()  # the caller may take its time
            for index, yielded in enumerate(batches):
                if yielded is not None:
                    rows, columns = yielded
                    batch = jax.tree.map(lambda leaf, i=index, rows=rows: leaf[i, rows], arrays)
                    yield self._chosen.beside(batch, columns)
        watchdog.begins(Doing.HOST)
        self._outfeed.drain()
        watchdog.rests()

    def _dispatch(self, piece: Piece, infeed: AnyInfeed, hooks: HookSequence) -> bool:
        before = self._batches
        self._watchdog.rests()  # it may have to trace and compile
        self._program.prepare(self._carry, self._frozen, piece.batches)
        self._watchdog.begins(Doing.DEVICES)
        self._carry, outputs = self._program(
            self._carry,
            self._frozen,
            piece.batches,
            piece.start,
            piece.stop,
            global_step=before,
            steps_left=piece.steps_left,
        )
        self._batches += piece.steps
        self._watchdog.begins(Doing.HOST)
        self._outfeed.put(outputs.every_step, self._yielded(piece))
        self.view = self._view(infeed, before, piece)
        self._watchdog.begins(Doing.HOOKS)
        return hooks.after_loop(self.view)

    def _yielded(self, piece: Piece) -> list[_Yielded | None]:
        """Returns what this process yields of each batch of the piece; None for nothing."""
        columns = [*piece.host_columns, *[{}] * (piece.steps - len(piece.host_columns))]
        own = list(zip(piece.rows, columns, strict=True))
        if not self._gather:
            return [(slice(0, int(rows)), beside) if rows else None for rows, beside in own]
        batch_size = piece.batches.shape[1]
        here = self._job.placement.local_rows(batch_size)
        hosts = self._job.hosts
        gathered = hosts.gather("rows", [(here[:rows], beside) for rows, beside in own])
        if not hosts.is_chief:
            return [None] * piece.steps
        return [_joined(parts) for parts in zip(*gathered, strict=True)]

    def _deliver(self, arrays: Any, batches: list[_Yielded | None]) -> None:
        self._results.put((arrays, batches))

    def _next_result(self) -> tuple[Any, list[_Yielded | None]]:
        result = self._results.get()
        assert result is not None, "nobody finishes this queue"
        return result

    def _view(self, infeed: AnyInfeed, before: int, piece: Piece | None) -> LoopView:
        elapsed_secs, input_wait_secs = infeed.lap()
        return LoopView(
            mode=ModeKeys.PREDICT,
            model_dir=self._job.model_dir,
            before=before,
            step=self._batches,
            elapsed_secs=elapsed_secs,
            input_wait_secs=input_wait_secs,
            examples=0 if piece is None else piece.examples,
            input_position=None,
            read_losses=lambda: np.zeros(0, np.float32),
            read_metrics=dict,
            read_state=lambda: jax.tree.map(jax.numpy.copy, self._frozen.variables),
        )


def _joined(parts: Sequence[tuple[np.ndarray, Mapping[str, np.ndarray]]]) -> _Yielded:
    """Returns the rows of a batch on all processes as one."""
    real = [(rows, columns) for rows, columns in parts if len(rows)]
    names = real[0][1]
    return np.concatenate([rows for rows, _ in real]), {
        name: np.concatenate([columns[name] for _, columns in real]) for name in names
    }


def single_examples(batches: Generator[Any]) -> Generator[Any]:
    """Yields the examples of each batch: the same pytree without the batch dimension."""
    with contextlib.closing(batches):
        for batch in batches:
            leaves, structure = jax.tree.flatten(batch)
            for values in zip(*leaves, strict=True):
                yield jax.tree.unflatten(structure, values)
