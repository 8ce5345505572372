"""The input of a run as all processes of the job read it: what its batches are, and its infeed."""

from __future__ import annotations

import jax
import numpy as np

from estimator.batches import Batches, Stacked
from estimator.errors import Rendezvous
from estimator.infeed import Infeed, Padding
from estimator.job import Job
from estimator.outline import Outline
from estimator.programs import BatchSpec
from estimator.scattered_infeed import ScatteredInfeed
from estimator.shared_infeed import SharedInfeed
from estimator.spec import ModeKeys
from input_pipeline import Source

AnyInfeed = Infeed | SharedInfeed | ScatteredInfeed


def batch_spec(job: Job, source: Source, mode: ModeKeys) -> BatchSpec | None:
    """Returns shapes and dtypes of the global batches of `source`; None if there are none to
    predict.

    A process without a batch may still evaluate and predict along with those that have some.

    Raises:
      ValueError: there are none to train with or to evaluate, or the processes read different
        kinds.
    """
    own = source.element_spec()
    if mode is ModeKeys.PREDICT:
        own = own[0], None
    empty = own[0] is None or source.at_end()
    specs = job.hosts.gather(f"the input of {mode}", None if empty else own)
    if job.scatters:
        specs = specs[:1]
    found = [spec for spec in specs if spec is not None]
    if not found and mode is ModeKeys.PREDICT:
        return None
    if not found or (mode is ModeKeys.TRAIN and len(found) < len(specs)):
        where = "" if len(specs) == 1 else f" (process {specs.index(None)} of {len(specs)})"
        raise ValueError(
            f"input_fn produced no batches{where}: its data is empty. Check its source, filters "
            "and drop_remainder."
        )
    for spec in found:
        if spec != found[0]:
            raise ValueError(
                f"The processes read different inputs: {found[0]} and {spec}. input_fn must give "
                "batches of one structure, shapes and dtypes on all of them."
            )
    check_features(found[0][0])
    spec = jax.tree.map(lambda leaf: _with_rows(leaf, leaf.shape[0] * len(specs)), found[0])
    job.partition.check(spec)
    return spec


def start_infeed(
    job: Job,
    source: Source,
    rendezvous: Rendezvous,
    mode: ModeKeys,
    spec: BatchSpec,
    outline: Outline,
    *,
    limit: int | None,
) -> AnyInfeed:
    """Starts to read `source`, up to `limit` batches; see `Infeed`.

    Raises:
      ValueError: the input cannot be read by several processes.
    """
    hosts = job.hosts
    many = hosts.count > 1
    if many:
        _check_for_many(source, hosts.count, scatters=job.scatters)
    num_batches = _num_batches(job, source, mode)
    batches = [n for n in (limit, num_batches) if n is not None]
    wanted = max(1, min([job.config.steps_per_dispatch, *batches]))
    if mode is ModeKeys.PREDICT and num_batches is None:
        # An iterator may wait for what its reader does with the results so far: each batch
        # goes as it comes.
        wanted = 1
    if source.shapes_vary:
        # A stack ends where the shape changes, and would mostly be sent with unset batches.
        wanted = 1
    table = None if source.table is None else job.tables.on_devices(source.table)
    stacked = spec if table is None else jax.ShapeDtypeStruct((source.batch_size,), np.int32)
    step_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(stacked))
    capacity = job.programs.capacity(
        mode, spec, outline, wanted, step_bytes=step_bytes // hosts.count
    )
    padding = _padding(mode, outline)
    infeed = None
    if hosts.is_chief or not job.scatters:
        infeed = Infeed(
            source,
            rendezvous,
            None if job.scatters else job.partition,
            capacity=capacity,
            limit=limit,
            padding=padding,
            labels=mode is not ModeKeys.PREDICT,
            table=table,
            # The transfers of all processes must hold the same batches.
            patient=many and not job.scatters,
            fill_up=many and not job.scatters and mode is not ModeKeys.TRAIN,
            one_size=many,
        )
    if job.scatters:
        batch_size = jax.tree.leaves(spec)[0].shape[0]
        rows = hosts.gather("rows of batches", job.placement.local_rows(batch_size))
        return ScatteredInfeed(infeed, hosts, job.partition, rows)
    assert infeed is not None
    return _shared(job, infeed, mode, spec, capacity, padding) if many else infeed


def _shared(
    job: Job, infeed: Infeed, mode: ModeKeys, spec: BatchSpec, capacity: int, padding: Padding
) -> SharedInfeed:
    def zeros(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        rows = leaf.shape[0] // job.hosts.count
        return np.zeros((capacity, rows, *leaf.shape[1:]), leaf.dtype)

    def filler() -> Stacked:
        features, labels = jax.tree.map(zeros, spec)
        batches = Batches(features, labels, None)
        if padding is not Padding.KEPT:
            batches = batches._replace(mask=np.zeros(batches.shape, bool))
        return job.partition.put(job.partition.packed(batches))

    def full_mask() -> jax.Array:
        rows = jax.tree.leaves(spec)[0].shape[0] // job.hosts.count
        return job.partition.put(Batches(np.ones((capacity, rows), bool), None, None)).features

    return SharedInfeed(
        infeed,
        job.hosts,
        filler=None if mode is ModeKeys.TRAIN else filler,
        full_mask=full_mask,
    )


def _check_for_many(source: Source, processes: int, *, scatters: bool) -> None:
    if source.table is not None:
        raise ValueError(
            f"device_resident=True keeps all data on every device, and {processes} processes read "
            "parts of it. Use Dataset.from_arrays(...) without it."
        )
    if source.shapes_vary and not scatters:
        raise ValueError(
            f"Batches that are padded to one of several lengths differ between {processes} "
            "processes. Pad all to one length, pad_to=[n], or let process 0 read them for all: "
            "RunConfig(input=InputPipelineConfig(deployment='sliced'))."
        )


def _num_batches(job: Job, source: Source, mode: ModeKeys) -> int | None:
    """Returns how many batches there are to run; None if a process does not know."""
    own = source.num_batches()
    numbers = job.hosts.agree("number of batches", -1 if own is None else own)[:, 0]
    if job.scatters:
        numbers = numbers[:1]
    if numbers.min() < 0:
        return None
    return int(numbers.min() if mode is ModeKeys.TRAIN else numbers.max())


def _with_rows(leaf: jax.ShapeDtypeStruct, rows: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)


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
