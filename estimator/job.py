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
from estimator.config import RunConfig
from estimator.device_tables import DeviceTables
from estimator.errors import Rendezvous
from estimator.infeed import Infeed, Padding
from estimator.input_partition import InputPartition
from estimator.inputs import open_source
from estimator.mesh import Placement
from estimator.outline import Outline
from estimator.programs import BatchSpec, Programs
from estimator.spec import ModeKeys
from estimator.steps import Frozen
from hooks import HookContext, StopNotices
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
    """

    config: RunConfig
    params: Mapping[str, Any]
    model_dir: Path
    placement: Placement
    programs: Programs
    tables: DeviceTables

    @property
    def partition(self) -> InputPartition:
        """Where batches go on the devices."""
        return InputPartition(self.placement, self.config.input)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files."""
        return jax.process_index() == 0

    def stop_notices(self) -> StopNotices:
        """Returns what hears, while it is entered, that the run has to stop."""
        return StopNotices(self.config.preemption_watchers, self.config.preemption_grace_secs)

    def open_source(self, input_fn: Callable[..., Any], mode: ModeKeys, batch_size: int) -> Source:
        """Calls input_fn for `mode`; see `inputs.open_source`."""
        return open_source(
            input_fn,
            mode=mode,
            batch_size=batch_size,
            params=self.params,
            config=self.config,
            placement=self.placement,
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
        step = jax.device_put(np.int32(step), self.placement.replicated)
        return Frozen(variables, step), initializer.outline

    def infeed(
        self,
        source: Source,
        rendezvous: Rendezvous,
        mode: ModeKeys,
        spec: BatchSpec,
        outline: Outline,
        *,
        limit: int | None,
    ) -> Infeed:
        """Starts to read `source`, up to `limit` batches."""
        num_batches = source.num_batches()
        batches = [n for n in (limit, num_batches) if n is not None]
        wanted = max(1, min([self.config.steps_per_dispatch, *batches]))
        if mode is ModeKeys.PREDICT and num_batches is None:
            # An iterator may wait for what its reader does with the results so far: each batch
            # goes as it comes.
            wanted = 1
        if source.shapes_vary:
            # A stack ends where the shape changes, and would mostly be sent with unset batches.
            wanted = 1
        table = None if source.table is None else self.tables.on_devices(source.table)
        stacked = spec if table is None else jax.ShapeDtypeStruct((source.batch_size,), np.int32)
        step_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(stacked))
        return Infeed(
            source,
            rendezvous,
            self.partition,
            capacity=self.programs.capacity(mode, spec, outline, wanted, step_bytes=step_bytes),
            limit=limit,
            padding=_padding(mode, outline),
            labels=mode is not ModeKeys.PREDICT,
            table=table,
        )

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
            is_chief=self.is_chief,
            stop_requested=stop_requested,
        )


def _padding(mode: ModeKeys, outline: Outline) -> Padding:
    if mode is ModeKeys.PREDICT:
        return Padding.KEPT
    if not outline.maskable:
        return Padding.CUT
    return Padding.MASKED if mode is ModeKeys.EVAL else Padding.MASKED_IF_ANY


def batch_spec(source: Source) -> BatchSpec:
    """Returns shapes and dtypes of the batches of `source`.

    Raises:
      ValueError: it has none.
    """
    spec = source.element_spec()
    if spec[0] is None or source.at_end():
        raise ValueError(
            "input_fn produced no batches: its data is empty. Check its source, filters and "
            "drop_remainder."
        )
    check_features(spec[0])
    return spec


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
