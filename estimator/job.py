"""What training, evaluation and prediction of one Estimator share, and how each is set up."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from estimator import checkpoints
from estimator.batches import Batches
from estimator.config import RunConfig
from estimator.device_tables import DeviceTables
from estimator.errors import Rendezvous
from estimator.hosts import HostError, Hosts
from estimator.infeed import Infeed, Padding
from estimator.input_partition import InputPartition
from estimator.inputs import open_source
from estimator.mesh import Placement
from estimator.outline import Outline
from estimator.programs import BatchSpec, Programs
from estimator.shared_infeed import SharedInfeed
from estimator.spec import ModeKeys
from estimator.steps import Frozen
from hooks import HookContext, StopNotice, StopNotices
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
    model_dir: Path
    placement: Placement
    programs: Programs
    tables: DeviceTables
    hosts: Hosts

    @property
    def partition(self) -> InputPartition:
        """Where batches go on the devices."""
        return InputPartition(self.placement, self.config.input)

    def stop_notices(self) -> StopNotices:
        """Returns what hears, while it is entered, that the run has to stop."""
        return StopNotices(self.config.preemption_watchers, self.config.preemption_grace_secs)

    def check_same_start(self, step: int) -> None:
        """Refuses to start where the processes found different checkpoints.

        Raises:
          HostError: they did.
        """
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

    def batch_spec(self, source: Source, mode: ModeKeys) -> BatchSpec | None:
        """Returns shapes and dtypes of the batches of `source`, over all processes; None if there
        are none to predict.

        A process without a batch may still evaluate and predict along with those that have some.

        Raises:
          ValueError: there are none to train with or to evaluate, or the processes read
            different kinds.
        """
        own = source.element_spec()
        if mode is ModeKeys.PREDICT:
            own = own[0], None
        empty = own[0] is None or source.at_end()
        specs = self.hosts.gather(f"the input of {mode}", None if empty else own)
        found = [spec for spec in specs if spec is not None]
        if not found and mode is ModeKeys.PREDICT:
            return None
        if not found or (mode is ModeKeys.TRAIN and len(found) < len(specs)):
            where = "" if len(specs) == 1 else f" (process {specs.index(None)} of {len(specs)})"
            raise ValueError(
                f"input_fn produced no batches{where}: its data is empty. Check its source, "
                "filters and drop_remainder."
            )
        for spec in found:
            if spec != found[0]:
                raise ValueError(
                    f"The processes read different inputs: {found[0]} and {spec}. input_fn must "
                    "give batches of one structure, shapes and dtypes on all of them."
                )
        check_features(found[0][0])
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (leaf.shape[0] * self.hosts.count, *leaf.shape[1:]), leaf.dtype
            ),
            found[0],
        )

    def frozen(self, mode: ModeKeys, spec: BatchSpec, path: Path | None) -> tuple[Frozen, Outline]:
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

    def infeed(
        self,
        source: Source,
        rendezvous: Rendezvous,
        mode: ModeKeys,
        spec: BatchSpec,
        outline: Outline,
        *,
        limit: int | None,
    ) -> Infeed | SharedInfeed:
        """Starts to read `source`, up to `limit` batches."""
        num_batches = self._num_batches(source, mode)
        batches = [n for n in (limit, num_batches) if n is not None]
        wanted = max(1, min([self.config.steps_per_dispatch, *batches]))
        if mode is ModeKeys.PREDICT and num_batches is None:
            # An iterator may wait for what its reader does with the results so far: each batch
            # goes as it comes.
            wanted = 1
        if source.shapes_vary:
            # A stack ends where the shape changes, and would mostly be sent with unset batches.
            wanted = 1
        many = self.hosts.count > 1
        if many and source.table is not None:
            raise ValueError(
                f"device_resident=True keeps all data on every device, and {self.hosts.count} "
                "processes read parts of it. Use Dataset.from_arrays(...) without it."
            )
        table = None if source.table is None else self.tables.on_devices(source.table)
        stacked = spec if table is None else jax.ShapeDtypeStruct((source.batch_size,), np.int32)
        step_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(stacked))
        step_bytes //= self.hosts.count
        capacity = self.programs.capacity(mode, spec, outline, wanted, step_bytes=step_bytes)
        padding = _padding(mode, outline)
        infeed = Infeed(
            source,
            rendezvous,
            self.partition,
            capacity=capacity,
            limit=limit,
            padding=padding,
            labels=mode is not ModeKeys.PREDICT,
            table=table,
            # The transfers of all processes must hold the same batches.
            patient=many,
            fill_up=many and mode is not ModeKeys.TRAIN,
        )
        if not many:
            return infeed
        local = jax.tree.map(
            lambda leaf: np.zeros(
                (capacity, leaf.shape[0] // self.hosts.count, *leaf.shape[1:]), leaf.dtype
            ),
            spec,
        )
        mask = np.zeros(jax.tree.leaves(local)[0].shape[:2], bool)

        def filler() -> Batches:
            features, labels = local
            masks = None if padding is Padding.KEPT else mask
            return self.partition.put(Batches(features, labels, masks))

        return SharedInfeed(
            infeed,
            self.hosts,
            filler=None if mode is ModeKeys.TRAIN else filler,
            full_mask=lambda: self.partition.put(Batches(~mask, None, None)).features,
        )

    def _num_batches(self, source: Source, mode: ModeKeys) -> int | None:
        """Returns how many batches there are to run; None if a process does not know."""
        own = source.num_batches()
        numbers = self.hosts.agree("number of batches", -1 if own is None else own)
        if numbers.min() < 0:
            return None
        return int(numbers.min() if mode is ModeKeys.TRAIN else numbers.max())

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


def _padding(mode: ModeKeys, outline: Outline) -> Padding:
    if mode is ModeKeys.PREDICT:
        return Padding.KEPT
    if not outline.maskable:
        return Padding.CUT
    return Padding.MASKED if mode is ModeKeys.EVAL else Padding.MASKED_IF_ANY


def check_features(features: object) -> None:
    """Refuses features without a single array.

    Raises:
      ValueError: there is none.
    """
    if not jax.tree.leaves(features):
        raise ValueError(
            "The features that input_fn gives hold no arrays. Return (features, labels), or "
            "features, with at least one array [batch, ...] in the features."
        )
