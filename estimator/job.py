"""What training, evaluation and prediction of one Estimator share, and how each is set up."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath

from estimator import checkpoints, input_positions
from estimator.config import RunConfig
from estimator.device_tables import DeviceTables
from estimator.errors import Rendezvous
from estimator.hosts import HostError, Hosts
from estimator.input_config import Deployment
from estimator.input_partition import InputPartition
from estimator.inputs import open_source
from estimator.mesh import Placement
from estimator.outline import Outline
from estimator.programs import BatchSpec, Programs
from estimator.spec import ModeKeys
from estimator.steps import Frozen
from estimator.watchdog import Watchdog
from hooks import Hook, HookContext, LoopView, StopNotice, StopNotices
from input_pipeline import Source

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One model with its settings, its devices and its folder.

    Attributes:
      config: how it runs.
      params: the user's hyperparameters.
      model_dir: where its files are.
      placement: the devices.
      programs: its compiled programs.
      tables: data that stays on the devices.
      hosts: the processes that run it.
    """

    config: RunConfig
    params: Mapping[str, Any]
    model_dir: epath.Path
    placement: Placement
    programs: Programs
    tables: DeviceTables
    hosts: Hosts

    @property
    def partition(self) -> InputPartition:
        """Where batches go on the devices."""
        return InputPartition(self.placement, self.config.input)

    @property
    def scatters(self) -> bool:
        """Whether process 0 reads the input for all."""
        return self.hosts.count > 1 and self.config.input.deployment in (
            Deployment.BROADCAST,
            Deployment.SLICED,
        )

    def stop_notices(self) -> StopNotices:
        """Returns what hears, while it is entered, that the run has to stop."""
        return StopNotices(self.config.preemption_watchers, self.config.preemption_grace_secs)

    def watchdog(self, rendezvous: Rendezvous) -> Watchdog:
        """Returns what raises in a run of this thread that hangs."""
        return Watchdog(
            self.config.watchdog_secs,
            rendezvous,
            lambda: self.programs.compiling() or self.hosts.meeting,
        )

    def check_same_start(self, step: int) -> None:
        """Refuses to start where the processes found different checkpoints.

        Raises:
          HostError: they did.
          ValueError: the devices are those of one process of a cluster, alone.
        """
        if self.hosts.count < jax.process_count():
            raise ValueError(
                f"The devices are those of one process of {jax.process_count()}, and checkpoints "
                "are written by all processes of a cluster together. To train a model on each, "
                "leave out est.distributed.initialize(); else use the devices of all."
            )
        steps = self.hosts.agree("start of training", step)[:, 0].tolist()
        if len(set(steps)) > 1:
            raise HostError(
                f"The processes found the steps {steps} in {self.model_dir}. It must be a folder "
                "that all of them see, such as one of a network file system."
            )

    def agreed_notice(self, notices: StopNotices) -> StopNotice | None:
        """Returns what has told the run to stop, on this process or another, or None."""
        given = [n for n in self.hosts.gather("the end of the loops", notices.first) if n]
        return given[0] if given else None

    @contextlib.contextmanager
    def sole_writer(self) -> Iterator[list[Hook]]:
        """Keeps other jobs from writing into model_dir; yields the hooks of the run that this
        takes. See `checkpoints.sole_writer`."""
        with contextlib.ExitStack() as stack:
            hooks: list[Hook] = []
            with self.hosts.together():
                if self.hosts.is_chief:
                    hooks.append(stack.enter_context(checkpoints.sole_writer(self.model_dir)))
            yield hooks

    def input_position(self, view: LoopView) -> Any:
        """Returns where the inputs of all processes stand after a loop, as a checkpoint has it."""
        own = view.input_position
        return input_positions.joined(self.hosts.gather(f"checkpoint at step {view.step}", own))

    def open_source(self, input_fn: Callable[..., Any], mode: ModeKeys, batch_size: int) -> Source:
        """Calls input_fn for `mode`; see `inputs.open_source`."""
        return open_source(
            input_fn,
            mode=mode,
            batch_size=batch_size,
            params=self.params,
            config=self.config,
            placement=self.placement,
            hosts=self.hosts,
        )

    def frozen(
        self, mode: ModeKeys, spec: BatchSpec, path: epath.Path | None
    ) -> tuple[Frozen, Outline]:
        """Returns the variables that model_fn uses in `mode`, from the checkpoint at `path`,
        or freshly initialised if it is None, and the outline of its spec."""
        initializer = self.programs.initializer(mode, spec)
        if path is None:
            logger.warning(
                "There is no checkpoint in %s: the model runs with untrained variables.",
                self.model_dir,
            )
            variables, step = initializer(self.config.seed), 0
        else:
            variables = checkpoints.restore_variables(path, initializer.abstract)
            step = checkpoints.global_step(path)
        return Frozen(variables, self.placement.replicate(np.int32(step))), initializer.outline

    def hook_context(
        self,
        mode: ModeKeys,
        batch_size: int,
        *,
        step: int,
        last_step: int | None,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> HookContext:
        """Returns what hooks are told at the start."""
        return HookContext(
            mode=mode,
            model_dir=self.model_dir,
            step=step,
            last_step=last_step,
            batch_size=batch_size,
            is_chief=self.hosts.is_chief,
            stop_requested=stop_requested,
        )
