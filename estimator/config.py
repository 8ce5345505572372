"""How a run behaves: frozen settings, checked when they are made."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Literal

from estimator.device_config import DeviceConfig
from estimator.input_config import InputPipelineConfig, Resume
from estimator.loop_length import loop_length
from estimator.loop_shape import LoopShape
from hooks import Every, EverySecs, EverySteps, PreemptionWatcher
from hooks.checks import positive_hours, positive_int, positive_secs

# A loop that lasts a time is as many dispatches as it takes; so many steps make each cheap.
_TIMED_LOOP_DISPATCH = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeepBest:
    """Which checkpoints are too good to be removed.

    They are judged by what `evaluate` writes down in model_dir. The newest checkpoint is kept
    anyway and takes no place of these; one that was not evaluated, whose evaluation had no such
    metric, or had NaN, is none of the best.

    Attributes:
      metric: "loss", or a metric by its name in the results of `evaluate`.
      mode: "min" if lower is better, "max" if higher is.
      count: how many to keep.
      name: of the evaluations, as in `evaluate(name=)`.
    """

    metric: str = "loss"
    mode: Literal["min", "max"] = "min"
    count: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(
                f"mode={self.mode!r} is not known. Use 'min' if lower is better, 'max' if higher "
                "is."
            )
        positive_int("count", self.count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of a run that are not the model's.

    Attributes:
      model_dir: where checkpoints and summaries go.
      seed: of parameter initialisation and of the per-step random numbers.
      iterations_per_loop: steps that run on the device between two looks of the host: a
        number, a duration such as "30s" or "5m" (as many steps as it holds, measured again
        and again), or "auto" (about a second).
      loop_shape: how steps become programs: "device_loop" (one program loops over them),
        "unrolled" (programs of ten steps) or "per_step". All compute the same up to rounding;
        "auto" begins with the likeliest and, in runs of more than five seconds, times the
        others on real steps and keeps the fastest. Name one where long runs have to agree in
        the last bit.
      save_checkpoints_steps: a checkpoint at every multiple of so many global steps.
      save_checkpoints_secs: a checkpoint every so many seconds. Of the two each counts on its
        own, and neither means 600 seconds. The end of training and a preemption always save:
        `save_checkpoints_secs=math.inf` leaves it at that.
      save_checkpoints_on_request: a checkpoint behind the loop that runs when the process gets
        SIGUSR1, or when there is a file `save_now` in model_dir; that is removed once the
        checkpoint is on disk.
      keep_checkpoint_max: newest checkpoints to keep; None keeps all.
      keep_checkpoint_every_n_hours: besides them, checkpoints that were written so far apart.
      keep_checkpoint_best: besides them, the best by a metric of their evaluations.
      save_summary_steps: TensorBoard scalars at every multiple; None for none.
      save_histograms_steps: TensorBoard histograms of parameters and gradients, and their norms,
        at every multiple; None for none. They are taken on the device.
      log_step_count_steps: a log line with loss and speed at every multiple; None for none, and
        for no TensorBoard scalars of speed and of how long checkpoints held up the loop.
      host_call_every_n_steps: host_call runs at multiples of so many global steps; what the
        other steps would send never leaves the device.
      infeed_buffer_bytes: upper bound of the batches of one transfer to the devices (at
        least one batch goes in each; two transfers wait while a third is in use). A loop
        whose batches do not fit runs as several dispatches, back to back.
      compilation_cache_dir: where compiled programs outlive the process, so that the next start
        compiles nothing; JAX has one such place for all of a process. None leaves it as it is.
      watchdog_secs: a run that makes no progress for so long (compiling is progress) logs where
        all its threads are, and raises `est.WatchdogError`; where that cannot be raised, in a
        hook that does not come back, the process ends as long after with code 124. Longer than a
        loop takes, and than any batch of the input or any hook may take. None waits for ever.
      debug_nans: when the loss or a parameter is no longer finite, runs that step again from the
        state before its loop, and says which layer, gradient and operation was the first. Keeps
        two more states on the devices. One process only.
      preemption_watchers: what knows, besides SIGTERM, that this machine will be taken away,
        such as `est.hooks.HttpWatcher.google_cloud()`; training and evaluation then save and
        stop behind the loop that runs.
      preemption_grace_secs: what the machine leaves between its notice (SIGTERM included) and
        its end. When it is over and the run has still not ended, the log gets the stacks of all
        threads, and the process ends. None waits as long as it takes.
      gradient_accumulation_steps: microbatches into which each training batch is cut; their
        gradients are added up before the one update of the step, which equals that of the whole
        batch where the loss is a mean over examples, in the memory of one microbatch.
      compute_dtype: "bfloat16" runs model_fn on parameters and features cast to it. The
        parameters themselves, their gradients and updates, and what leaves model_fn (loss,
        metrics, predictions) are float32. None leaves all dtypes to model_fn.
      devices: where the model runs.
      input: how input_fn is deployed over hosts and replicas, and how its tensors lie.
      input_resume: where the input of a run begins that goes on from a checkpoint: "continue"
        where that checkpoint left it, or "restart" at its start, as for other data.
      require_exact_resume: refuses, before training, an input that would be resumed by reading
        and dropping what came before (an iterator, tf.data, torch), which trusts that it comes
        again in the same order; and, when a run goes on, an input that is not the one saved.
    """

    model_dir: str | os.PathLike[str] | None = None
    seed: int = 0
    iterations_per_loop: int | str = 100
    loop_shape: str = "auto"
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    save_checkpoints_on_request: bool = True
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = None
    keep_checkpoint_best: KeepBest | None = None
    save_summary_steps: int | None = 100
    save_histograms_steps: int | None = None
    log_step_count_steps: int | None = 100
    host_call_every_n_steps: int = 1
    infeed_buffer_bytes: int = 64 * 2**20
    compilation_cache_dir: str | os.PathLike[str] | None = None
    watchdog_secs: float | None = None
    debug_nans: bool = False
    preemption_watchers: Sequence[PreemptionWatcher] = ()
    preemption_grace_secs: float | None = None
    gradient_accumulation_steps: int = 1
    compute_dtype: str | None = None
    devices: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)
    input: InputPipelineConfig = dataclasses.field(default_factory=InputPipelineConfig)
    input_resume: str = Resume.CONTINUE
    require_exact_resume: bool = False

    def __post_init__(self) -> None:
        loop_length(self.iterations_per_loop)
        for name in (
            "host_call_every_n_steps",
            "infeed_buffer_bytes",
            "gradient_accumulation_steps",
        ):
            positive_int(name, getattr(self, name))
        for name in (
            "save_checkpoints_steps",
            "keep_checkpoint_max",
            "save_summary_steps",
            "save_histograms_steps",
            "log_step_count_steps",
        ):
            if getattr(self, name) is not None:
                positive_int(name, getattr(self, name))
        shapes = ["auto", *LoopShape]
        if self.loop_shape not in shapes:
            raise ValueError(
                f"loop_shape={self.loop_shape!r} is not known. Use one of {', '.join(shapes)}."
            )
        if self.compute_dtype not in (None, "bfloat16"):
            raise ValueError(
                f"compute_dtype={self.compute_dtype!r} is not known. Use 'bfloat16' or None. "
                "(float16 would need the loss to be scaled.)"
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed must be an int, got {self.seed!r}.")
        if self.save_checkpoints_secs is not None:
            positive_secs("save_checkpoints_secs", self.save_checkpoints_secs)
        if self.keep_checkpoint_every_n_hours is not None:
            positive_hours("keep_checkpoint_every_n_hours", self.keep_checkpoint_every_n_hours)
        if not isinstance(self.keep_checkpoint_best, KeepBest | None):
            raise TypeError(
                f"keep_checkpoint_best must be a KeepBest, got {self.keep_checkpoint_best!r}. "
                "Write keep_checkpoint_best=KeepBest(metric='loss', mode='min', count=1)."
            )
        _check_watchers(self.preemption_watchers)
        for name in ("watchdog_secs", "preemption_grace_secs"):
            if getattr(self, name) is not None:
                positive_secs(name, getattr(self, name))
        if not isinstance(self.input, InputPipelineConfig):
            raise TypeError(
                f"input must be an InputPipelineConfig, got {type(self.input).__name__}. "
                "Write input=InputPipelineConfig(deployment='per_replica')."
            )
        if self.input_resume not in list(Resume):
            raise ValueError(
                f"input_resume={self.input_resume!r} is not known. Use one of {', '.join(Resume)}."
            )
        if not isinstance(self.require_exact_resume, bool):
            raise TypeError(
                f"require_exact_resume must be True or False, got {self.require_exact_resume!r}."
            )
        if not isinstance(self.devices, DeviceConfig):
            raise TypeError(
                f"devices must be a DeviceConfig, got {type(self.devices).__name__}. "
                "Write devices=DeviceConfig(devices=[...])."
            )

    @property
    def steps_per_dispatch(self) -> int:
        """Steps that are handed to the devices at once, at most."""
        if isinstance(self.iterations_per_loop, int):
            return self.iterations_per_loop
        return _TIMED_LOOP_DISPATCH

    def fixed_loop_shape(self) -> LoopShape | None:
        """Returns the shape of the loops, or None if it is to be measured."""
        return None if self.loop_shape == "auto" else LoopShape(self.loop_shape)

    def save_checkpoints_every(self) -> list[Every]:
        """Returns when checkpoints are due; the clock of a duration starts now."""
        steps, secs = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps is None and secs is None:
            secs = 600
        by_steps = [] if steps is None else [EverySteps(steps)]
        by_secs = [] if secs is None else [EverySecs(secs)]
        return [*by_steps, *by_secs]


def _check_watchers(watchers: Any) -> None:
    if isinstance(watchers, str) or not isinstance(watchers, Sequence):
        raise TypeError(
            f"preemption_watchers must be a list, such as [est.hooks.FileWatcher(path)], got "
            f"{watchers!r}."
        )
    for watcher in watchers:
        if isinstance(watcher, type) or not isinstance(watcher, PreemptionWatcher):
            raise TypeError(
                "preemption_watchers must hold objects with every_secs and poll(), such as "
                f"est.hooks.FileWatcher(path), got {watcher!r}."
            )
