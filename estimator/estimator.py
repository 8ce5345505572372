"""The Estimator: train, evaluate, predict with and export the model of a model_fn."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from estimator import checkpoints, evaluation, exporting, prediction, training, training_end
from estimator.config import RunConfig
from estimator.device_tables import DeviceTables
from estimator.export import ServingInput, require_flatbuffers
from estimator.feeding import check_features
from estimator.hosts import Hosts
from estimator.job import Job
from estimator.mesh import Placement
from estimator.model import RESERVED_PARAMS, Model
from estimator.programs import Programs
from estimator.runtime import use_compilation_cache
from estimator.spec import ModeKeys
from estimator.state import TrainState
from hooks import Hook, SaveListener, eval_dir
from hooks.checks import list_of_hooks, list_of_save_listeners, positive_int

logger = logging.getLogger(__name__)

InputFn = Callable[..., Any]


class Estimator:
    """Trains, evaluates, predicts with and exports the model of a `model_fn`.

    Args:
      model_fn: returns an `EstimatorSpec`; called with whichever of `features`, `labels`,
        `mode`, `params`, `config`, `model` and `context` it names.
      model_dir: where checkpoints and summaries go; a temporary folder if neither it nor
        `config.model_dir` is given.
      config: how to run.
      params: hyperparameters for model_fn and input_fn, which find `batch_size` and
        `context` in them besides.
      train_batch_size: examples of a training step, over all replicas and hosts.
      eval_batch_size: likewise for evaluation.
      predict_batch_size: likewise for prediction.
      model: who holds the variables, if not the linen layers that model_fn makes inline: a
        `flax.linen` module, a function of `rngs` that builds an `nnx.Module`, or an
        `est.Functional`.
      warm_start_from: path of a checkpoint, or a `WarmStart`: training that begins takes variables
        from there, once. With a checkpoint in model_dir training goes on from that one.

    Raises:
      TypeError: an argument of the wrong type, or a model_fn that needs unknown arguments.
      ValueError: a batch size that does not divide over the replicas, reserved keys in
        `params`, or two different model_dirs.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        model: Any = None,
        warm_start_from: str | os.PathLike[str] | checkpoints.WarmStart | None = None,
    ):
        config = RunConfig() if config is None else config
        if not isinstance(config, RunConfig):
            raise TypeError(f"config must be a RunConfig, got {type(config).__name__}.")
        params = _checked_params(params)
        self._warm_start = checkpoints.WarmStart.of(warm_start_from)
        if config.compilation_cache_dir is not None:
            use_compilation_cache(config.compilation_cache_dir)
        placement = Placement.make(config.devices)
        hosts = Hosts(placement.mesh.devices.flat)
        if config.debug_nans and hosts.count > 1:
            raise ValueError(
                f"debug_nans=True traces a step within one process, and there are {hosts.count}. "
                "Leave it out, and trace a checkpoint: est.debug.trace_tensors(model_fn, batch, "
                "checkpoint_path=...)."
            )
        self._batch_sizes = {
            ModeKeys.TRAIN: ("train_batch_size", train_batch_size),
            ModeKeys.EVAL: ("eval_batch_size", eval_batch_size),
            ModeKeys.PREDICT: ("predict_batch_size", predict_batch_size),
        }
        for mode, (name, size) in self._batch_sizes.items():
            parts = config.gradient_accumulation_steps if mode is ModeKeys.TRAIN else 1
            if size is not None:
                placement.check_batch_size(name, size, parts)
        self._model = Model(
            model_fn,
            params=params,
            config=config,
            num_replicas=placement.num_replicas,
            model=model,
        )
        self._job = Job(
            config=config,
            params=params,
            model_dir=_chosen_model_dir(model_dir, config, hosts),
            placement=placement,
            programs=Programs(self._model, placement, config),
            tables=DeviceTables(placement),
            hosts=hosts,
        )

    @property
    def model_dir(self) -> str:
        """Where checkpoints and summaries are."""
        return str(self._job.model_dir)

    @property
    def hosts(self) -> Hosts:
        """The processes that run it together."""
        return self._job.hosts

    @property
    def config(self) -> RunConfig:
        """How this Estimator runs."""
        return self._job.config

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the hyperparameters."""
        return dict(self._job.params)

    def batch_size(self, mode: ModeKeys) -> int:
        """Returns the examples of a batch in `mode`, over all replicas and hosts.

        Raises:
          ValueError: the Estimator was made without it.
        """
        name, size = self._batch_sizes[mode]
        if size is None:
            raise ValueError(
                f"{name} is missing, and this call needs it. Pass Estimator(..., {name}=...)."
            )
        return size

    def eval_dir(self, name: str | None = None) -> str:
        """Returns where `evaluate(name=name)` writes its TensorBoard events and results."""
        return str(eval_dir(self._job.model_dir, name))

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the newest whole checkpoint, or None."""
        path = checkpoints.latest(self._job.model_dir)
        return None if path is None else str(path)

    def get_variable_names(self) -> list[str]:
        """Returns the names of the variables in the newest checkpoint, such as
        `params/Dense_0/kernel`.

        Raises:
          FileNotFoundError: there is no checkpoint.
        """
        return sorted(checkpoints.variable_shapes(self._trained()))

    def get_variable_value(self, name: str) -> np.ndarray:
        """Returns a variable of the newest checkpoint.

        Raises:
          FileNotFoundError: there is no checkpoint.
          KeyError: it has no such variable.
        """
        return checkpoints.load_variable(self._trained(), name)

    def abstract_state(self, batch: Any) -> TrainState:
        """Returns shape, dtype and sharding of all that training keeps, without making it.

        Args:
          batch: (features, labels) of a training batch, arrays or `jax.ShapeDtypeStruct`s
            `[batch, ...]`.

        Raises:
          TypeError, ValueError: bad model_fn, batch or DeviceConfig, as in `train`.
        """
        if not (isinstance(batch, tuple) and len(batch) == 2):
            raise TypeError(
                f"batch must be a pair (features, labels), got {type(batch).__name__}. Pass "
                "labels=None in it for a model without."
            )
        check_features(batch[0])
        spec = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)
            ),
            batch,
        )
        return self._job.programs.initializer(ModeKeys.TRAIN, spec).abstract

    def train(
        self,
        input_fn: InputFn,
        hooks: Sequence[Hook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> Estimator:
        """Trains from the newest checkpoint in model_dir, or from the start if there is none.

        The input goes on where that checkpoint left it, also in a second call; if it was at its
        end, it starts again, and so it does, with a warning, if it is another one. See
        `RunConfig.input_resume` and `RunConfig.require_exact_resume`.

        Args:
          input_fn: called with whichever of `params`, `mode`, `config` and `context` it
            names; returns what `input_pipeline.make_source` reads.
          hooks: run between loops, in the order given: before those of
            `EstimatorSpec.training_hooks`, and these before the built-in ones.
          steps: how many steps to train from where training stands.
          max_steps: global step at which to stop; nothing happens if it is reached already.
            With neither, training lasts as long as the input.
          saving_listeners: objects with `before_save(view)` and `after_save(step, path)`, as
            in `hooks.Hook`.

        Returns:
          This Estimator. The state is in a checkpoint.

        Raises:
          TypeError, ValueError: bad arguments, model_fn or input, or a model_dir that cannot be
            written, with words.
          hooks.NanLossError: a loss was NaN or infinite, unless `hooks` has a NanHook.
          CheckpointError: a checkpoint could not be written.
          WriterConflictError: another process trains into model_dir.
          Whatever model_fn, input_fn, host_call or a hook raises, as itself.
        """
        batch_size = self.batch_size(ModeKeys.TRAIN)
        if steps is not None and max_steps is not None:
            raise ValueError(
                f"steps={steps} and max_steps={max_steps} are both given. steps counts from where "
                "training stands, max_steps is a global step: give one of them."
            )
        steps = None if steps is None else positive_int("steps", steps)
        max_steps = None if max_steps is None else positive_int("max_steps", max_steps)
        hooks = list_of_hooks("hooks", hooks)
        listeners = list_of_save_listeners("saving_listeners", saving_listeners)
        with self._job.sole_writer() as lock_hooks:
            all_hooks = [*lock_hooks, *hooks]
            self._train(input_fn, batch_size, all_hooks, listeners, steps, max_steps)
        return self

    def _train(
        self,
        input_fn: InputFn,
        batch_size: int,
        hooks: Sequence[Hook],
        listeners: Sequence[SaveListener],
        steps: int | None,
        max_steps: int | None,
    ) -> None:
        checkpoint = checkpoints.latest(self._job.model_dir)
        first_step = 0 if checkpoint is None else checkpoints.global_step(checkpoint)
        self._job.check_same_start(first_step)
        last_step = max_steps if steps is None else first_step + steps
        if last_step is not None and first_step >= last_step:
            logger.warning(
                "Nothing to train: the checkpoint in %s has reached max_steps (%d >= %d). Ask for "
                "more steps, or use a new model_dir.",
                self.model_dir,
                first_step,
                last_step,
            )
            if self._job.hosts.is_chief:
                training_end.mark(self._job.model_dir, first_step)
            return
        warm_start = self._warm_start
        if warm_start is not None and checkpoint is not None:
            logger.info(
                "Nothing is taken from %s: training goes on from %s.",
                warm_start.checkpoint,
                checkpoint,
            )
        training.train(
            self._job,
            input_fn,
            batch_size=batch_size,
            hooks=hooks,
            saving_listeners=listeners,
            checkpoint=checkpoint,
            warm_start=warm_start,
            first_step=first_step,
            last_step=last_step,
        )

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Sequence[Hook] | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates a checkpoint: every example counts once, the last, partial batch included.

        Args:
          input_fn: as in `train`.
          steps: batches to evaluate at most; None evaluates to the end of the input.
          hooks: run between loops, before those of `EstimatorSpec.evaluation_hooks`.
          checkpoint_path: the newest one in model_dir if None. If there is none either, the
            model is evaluated as it is initialised, and a warning says so.
          name: tells evaluations on different data apart.

        Returns:
          `loss`, `global_step` and the metrics by name. Also written to `eval_dir(name)`: as
          TensorBoard events, and as a line for `hooks.read_eval_results`.

        Raises:
          FileNotFoundError: there is no checkpoint at `checkpoint_path`.
          TypeError, ValueError: bad arguments, model_fn or input, with words; among them an
            input without a single batch, and a checkpoint of another model.
          Whatever model_fn, input_fn, a metric_fn or a hook raises, as itself.
        """
        batch_size = self.batch_size(ModeKeys.EVAL)
        steps = None if steps is None else positive_int("steps", steps)
        return evaluation.evaluate(
            self._job,
            input_fn,
            batch_size=batch_size,
            steps=steps,
            hooks=list_of_hooks("hooks", hooks),
            checkpoint=self._checkpoint(checkpoint_path),
            results_dir=self.eval_dir(name),
        )

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: str | Iterable[str] | None = None,
        hooks: Sequence[Hook] | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        yield_single_examples: bool = True,
        gather: bool = False,
    ) -> Generator[Any]:
        """Yields predictions for every example, in input order, as they are computed.

        Closing the iterator early stops the work and its threads.

        Args:
          input_fn: as in `train`; labels are not used.
          predict_keys: names of the predictions to compute and, see below, of features to keep;
            all if None.
          hooks: run between loops, before those of `EstimatorSpec.prediction_hooks`.
          checkpoint_path: as in `evaluate`.
          yield_single_examples: False yields batches `[rows, ...]` instead.
          gather: on many processes, each yields the predictions of its own input; True yields
            all on process 0, batch by batch in the order of the processes, and none on the
            others. Either way all of them must read to the end.

        Yields:
          What model_fn gives as predictions, in numpy, without the batch dimension. Columns of a
          features dict that hold no numbers, such as file names, never go to the devices: they
          are yielded in the same dict as the predictions, as they are.

        Raises:
          As `evaluate`, but an input without examples just yields nothing. Bad arguments
          raise at the call, the rest at the first `next`.
        """
        if checkpoint_path is not None:
            self._checkpoint(checkpoint_path)  # a wrong path is an error at the call
        batches = prediction.predict(
            self._job,
            input_fn,
            batch_size=self.batch_size(ModeKeys.PREDICT),
            keys=_checked_keys(predict_keys),
            hooks=list_of_hooks("hooks", hooks),
            find_checkpoint=lambda: self._checkpoint(checkpoint_path),
            gather=gather,
        )
        return prediction.single_examples(batches) if yield_single_examples else batches

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input: ServingInput,
        assets_extra: Mapping[str, str | os.PathLike[str]] | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
    ) -> str:
        """Writes the model for serving: programs for cpu, cuda and tpu that take any batch size.

        On many processes all of them call it, and process 0 writes.

        Args:
          export_dir_base: the export goes into a folder in it that is named by the time.
          serving_input: what the model is fed with: `est.export.serving_input(...)`.
          assets_extra: path below `assets.extra/` -> file or folder to copy there.
          checkpoint_path: the newest one in model_dir if None.

        Returns:
          The path of the export, for `est.export.load`. It is whole or absent.

        Raises:
          FileNotFoundError: there is no checkpoint.
          ImportError, TypeError, ValueError, OSError: see `export.write`.
        """
        require_flatbuffers()
        if not isinstance(serving_input, ServingInput):
            raise TypeError(
                f"serving_input must come from est.export.serving_input(features), got "
                f"{type(serving_input).__name__}."
            )
        path = self._checkpoint(checkpoint_path) or self._trained()
        export = self.hosts.on_chief(
            f"export of {path.name}",
            lambda: exporting.export(
                self._job, self._model, path, export_dir_base, serving_input, assets_extra
            ),
        )
        logger.info("Exported %s to %s.", path, export)
        return export

    def _checkpoint(self, given: str | os.PathLike[str] | None) -> epath.Path | None:
        if given is not None:
            return checkpoints.existing(given)
        return checkpoints.latest(self._job.model_dir)

    def _trained(self) -> epath.Path:
        path = checkpoints.latest(self._job.model_dir)
        if path is None:
            raise FileNotFoundError(
                f"There is no checkpoint in {self._job.model_dir}. Call train first."
            )
        return path


def _checked_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise TypeError(f"params must be a dict, got {type(params).__name__}.")
    taken = sorted(set(RESERVED_PARAMS) & set(params))
    if taken:
        raise ValueError(
            f"params must not hold {taken}: the Estimator fills them in for model_fn and "
            "input_fn. Batch sizes are arguments of the Estimator, such as train_batch_size."
        )
    return dict(params)


def _chosen_model_dir(
    given: str | os.PathLike[str] | None, config: RunConfig, hosts: Hosts
) -> epath.Path:
    chosen = config.model_dir if given is None else given
    if chosen is None:
        if hosts.count > 1:
            raise ValueError(
                f"model_dir is missing, and {hosts.count} processes cannot share a temporary one. "
                "Pass Estimator(..., model_dir=...), a folder that all of them see."
            )
        chosen = tempfile.mkdtemp(prefix="estimator-")
        logger.warning("No model_dir was given: checkpoints go to the temporary %s.", chosen)
    path = checkpoints.as_path(chosen)
    if config.model_dir is not None and checkpoints.as_path(config.model_dir) != path:
        raise ValueError(
            f"model_dir={str(path)!r} and config.model_dir={str(config.model_dir)!r} differ. "
            "Give one of them."
        )
    return path


def _checked_keys(keys: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if keys is None:
        return None
    names = (keys,) if isinstance(keys, str) else keys
    if isinstance(names, set | frozenset):
        names = sorted(names, key=str)  # the order of a set changes from run to run
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"predict_keys must be names of predictions, got {keys!r}.")
    if not names:
        raise ValueError(
            f"predict_keys={keys!r} leaves nothing to compute. Name the predictions to compute, "
            "or pass None for all."
        )
    return tuple(names)
