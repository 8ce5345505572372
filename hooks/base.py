"""What a hook is, what it is shown, and the two services it may call."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from etils import epath

from hooks.histogram import Histogram


@dataclasses.dataclass(frozen=True)
class EverySteps:
    """Due when the global step crosses a multiple of `steps`."""

    steps: int

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not hasattr(self.steps, "__index__") or self.steps < 1:
            raise ValueError(f"EverySteps needs a positive int, got {self.steps!r}.")
        object.__setattr__(self, "steps", int(self.steps))  # a NumPy integer counts

    def next_step(self, step: int) -> int:
        """Returns the first multiple after `step`."""
        return (step // self.steps + 1) * self.steps

    def due(self, before: int, after: int) -> bool:
        """Says whether a loop that ran from `before` to `after` crossed a multiple."""
        return before // self.steps != after // self.steps


class EverySecs:
    """Due when `secs` seconds have passed since it was last due (or since it was made).

    Args:
      secs: the period in seconds, positive.
      clock: returns monotonic seconds; tests pass their own.
    """

    def __init__(self, secs: float, clock: Callable[[], float] = time.monotonic):
        if isinstance(secs, bool) or not isinstance(secs, int | float) or not secs > 0:
            raise ValueError(f"EverySecs needs a positive number of seconds, got {secs!r}.")
        self.secs = secs
        self._clock = clock
        self._last = clock()

    def next_step(self, step: int) -> None:
        """Returns None: a duration never asks for an exact step."""

    def due(self, before: int, after: int) -> bool:
        """Says whether the period has passed; if so, the next one starts now."""
        now = self._clock()
        if now - self._last < self.secs:
            return False
        self._last = now
        return True


Every = EverySteps | EverySecs


@runtime_checkable
class Writer(Protocol):
    """Where summaries go: `EventWriter` and `tensorboardX.SummaryWriter` have this shape."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> Any: ...

    def flush(self) -> Any: ...


class Saver(Protocol):
    """Writes checkpoints in the background.

    Whoever made it closes it, and there lets a checkpoint that was begun before an error of
    the run become whole.
    """

    def save(self, view: LoopView) -> epath.Path | None:
        """Starts to save the state and the input position of `view`.

        Returns as soon as the state is safe from the next loop; the write goes on in
        the background. Raises the error of an earlier write that failed.

        Returns:
          The path that the checkpoint will have, or None if `view.step` is already saved.
        """
        ...

    def wait(self) -> None:
        """Blocks until what was started is on disk; raises what went wrong with it."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class HookContext:
    """What a hook is told before the first loop.

    Attributes:
      mode: "train", "eval" or "infer": the values of `ModeKeys`, of old, where PREDICT is "infer".
        They equal its members.
      model_dir: where the run keeps its files.
      step: global step at which the run starts.
      last_step: global step at which it ends if the input lasts, or None.
      batch_size: examples per step over all replicas and hosts.
      is_chief: whether this process is the one that writes files and the progress bar.
      stop_requested: says whether a signal has asked the run to stop meanwhile: a hook that
        waits for something should then wait no longer.
    """

    mode: str
    model_dir: epath.Path
    step: int
    last_step: int | None
    batch_size: int
    is_chief: bool = True
    stop_requested: Callable[[], bool] = lambda: False


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LoopView:
    """What a hook may see between two loops. Reading a lazy value waits for the device.

    Attributes:
      mode: "train", "eval" or "infer" (that is `ModeKeys.PREDICT`).
      model_dir: where the run keeps its files.
      before: global step before the loop (in evaluate and predict: batches before it).
      step: global step after the loop (likewise).
      elapsed_secs: wall time since the previous `after_loop` (since `begin` for the first).
      input_wait_secs: the part of it that the main thread waited for input.
      examples: real examples (padding not counted) in the loop.
      input_position: where the input stands after the last batch of the loop (JSON), or
        None in evaluate and predict.
      trace_step: runs the step that led to a global step of the loop again and returns an
        `est.debug.TensorReport`; None without `RunConfig(debug_nans=True)`.
    """

    mode: str
    model_dir: epath.Path
    before: int
    step: int
    elapsed_secs: float
    input_wait_secs: float
    examples: int
    input_position: Any
    read_losses: Callable[[], np.ndarray]
    read_metrics: Callable[[], Mapping[str, np.ndarray]]
    read_state: Callable[[], Any]
    read_bad_variable: Callable[[], str | None] = lambda: None
    read_histograms: Callable[[], Mapping[int, Mapping[str, Histogram]]] = dict
    trace_step: Callable[[int], Any] | None = None

    @property
    def losses(self) -> np.ndarray:
        """Losses of the loop's steps, `[step - before]` float32: entry i is the loss of
        step `before + 1 + i`. Empty in predict."""
        return self.read_losses()

    @property
    def metrics(self) -> Mapping[str, np.ndarray]:
        """Per-step means of `EstimatorSpec.metrics`, each `[step - before]`. Empty in predict; in
        evaluate without those that merge themselves."""
        return self.read_metrics()

    @property
    def scalars(self) -> Mapping[str, np.ndarray]:
        """The losses under the name `loss`, and the metrics; empty in predict."""
        losses = self.losses
        return {"loss": losses, **self.metrics} if losses.size else {}

    @property
    def histograms(self) -> Mapping[int, Mapping[str, Histogram]]:
        """By global step, the histograms of the parameters after that step and of its gradients,
        under names such as `parameters/Dense_0/kernel` and `gradients/Dense_0/kernel`. Only the
        steps that are multiples of `RunConfig.save_histograms_steps` have them."""
        return self.read_histograms()

    @property
    def bad_variable(self) -> str | None:
        """The name of a variable that is no longer a number after the loop, or None: a parameter
        that is NaN or infinite, or a NaN in the model's other variables or the optimizer's state.
        Train mode only; judged on the devices. Like `state`, to be read before the next loop."""
        return self.read_bad_variable()

    def state(self) -> Any:
        """Returns a copy of the train state after the loop that outlives the next loop."""
        return self.read_state()


class Hook:
    """Runs on the host between the loops of train, evaluate or predict. Override what you need.

    Order, the same for every method: hooks that are given to train, evaluate or predict, in
    that order; those of the EstimatorSpec; the built-in ones, the checkpoint saver last. All
    see a loop even if one of them asks to stop after it. An exception from any method ends the
    run and reaches the caller as itself.

    A hook is given to one run at a time, and once; in the next it starts anew with `begin`.
    """

    def begin(self, context: HookContext) -> str | None:
        """Called once, before the first loop. A returned string is a reason not to run any
        loop, and is logged."""
        return None

    def next_step(self, step: int) -> int | None:
        """Returns the exact global step, after `step`, at which this hook next needs
        control, or None. The loop is cut there."""
        return None

    def before_loop(self, step: int) -> str | None:
        """Called before each loop with the global step at which it starts. A returned string
        is a reason to stop instead, and is logged."""
        return None

    def after_loop(self, view: LoopView) -> str | None:
        """Called after each loop. A returned string is a reason to stop, and is logged."""
        return None

    def before_save(self, view: LoopView) -> str | None:
        """Called before a checkpoint of `view` is written. A returned string is a reason
        not to write it, and is logged."""
        return None

    def after_save(self, step: int, path: epath.Path) -> None:
        """Called when a checkpoint has been written: `path` is whole, and can be evaluated.
        Training waits for the write only where a hook or listener has this method."""

    def end(self, view: LoopView) -> None:
        """Called once after the last loop of a run that ended without an error. `view`
        is that of the last loop, or an empty one (`before == step`) if there was none."""

    def on_error(self, error: BaseException) -> None:
        """Called once when the run ends by `error`: instead of `end`, or after it where the
        `end` of a later hook failed. In predict it may be the GeneratorExit of a reader that
        wants no more results."""


def overrides(hook: object, method: str) -> bool:
    """Says whether `hook` has a `method` of its own, other than the one of `Hook` that does
    nothing."""
    own = getattr(hook, method, None)
    return own is not None and getattr(own, "__func__", None) is not getattr(Hook, method)
