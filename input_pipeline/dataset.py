"""A small pipeline for those who bring arrays or files: the same order in every run."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from input_pipeline.arrays import ArraySource
from input_pipeline.assembly import Assembly
from input_pipeline.batch_source import BatchSource
from input_pipeline.columns import Columns
from input_pipeline.description import describe
from input_pipeline.host_columns import HostColumns
from input_pipeline.layout import split
from input_pipeline.order import Order, Shard, Shuffle, Take
from input_pipeline.padding import PadTo
from input_pipeline.pipeline import Plan, PlanReader
from input_pipeline.resident import ResidentSource
from input_pipeline.roots import (
    ColumnsRoot,
    GeneratedRoot,
    LookupRoot,
    RandomAccess,
    ResidentRoot,
    Root,
)
from input_pipeline.source import Source
from input_pipeline.steps import Filter, Map


class Dataset:
    """Examples, or batches of them, in a given order. Each method returns another dataset.

        Dataset.from_arrays((features, labels)).shuffle(seed=0).repeat().batch(32)

    An element is what the root gives: `(features, labels)`, a plain tuple of two, or features
    alone, in any nested dict, tuple or namedtuple. Up to `batch`, elements are examples; from
    there on they are batches, with leaves `[batch, ...]`. A dataset without `batch` is batched
    by whoever reads it, to the size that is needed there.

    What is read, and in which order, depends on nothing but the data and the seeds. Datasets of
    arrays or of a random access source continue at any place at once; a generated one reads
    and drops what comes before in the epoch.
    """

    def __init__(self, plan: Plan):
        self._plan = plan

    @classmethod
    def from_arrays(cls, arrays: Any, *, device_resident: bool = False) -> Dataset:
        """Makes examples of the rows of arrays.

        Args:
          arrays: `(features, labels)` or features, each leaf `[num_examples, ...]`. 64 bit
            numbers are narrowed to 32 here, unless jax has 64.
          device_resident: put the arrays on the devices once, whole on each, and for every
            batch only the numbers of its rows, which the devices gather. Pays where to copy
            the examples takes longer than the step; keep the dataset for several runs, and its
            arrays as they are.

        Raises:
          ValueError: an array is a scalar or has values that do not fit into 32 bits, or they
            differ in length; or `device_resident` ones hold no numbers.
        """
        columns = Columns.of(split(arrays))
        return cls.from_root(ResidentRoot(columns) if device_resident else ColumnsRoot(columns))

    @classmethod
    def from_source(cls, source: RandomAccess) -> Dataset:
        """Makes an example of each entry of a list, a map-style torch dataset, a grain or tfds
        data source, or anything else with `len(source)` and `source[index]`."""
        if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
            raise TypeError(
                f"from_source needs something with a length and numbered entries, got a "
                f"{type(source).__name__}. For an iterator, use from_generator."
            )
        return cls.from_root(LookupRoot(source))

    @classmethod
    def from_generator(cls, generate: Callable[[], Iterable[Any]]) -> Dataset:
        """Makes an example of each thing that `generate()`, called once in each epoch, yields."""
        if not callable(generate):
            raise TypeError(
                f"from_generator needs a function, got a {type(generate).__name__}. Pass the "
                "function itself, not what it returns: each epoch calls it anew."
            )
        return cls.from_root(GeneratedRoot(generate))

    @classmethod
    def from_root(cls, root: Root) -> Dataset:
        """Makes examples of what a root of another kind gives."""
        return cls(Plan(root=root, order=Order(root.num_examples)))

    def map(self, function: Callable[..., Any], *, seed: int | None = None) -> Dataset:
        """Replaces each element by `function(element)`.

        Args:
          function: gets an example, or after `batch` a batch. What `from_arrays` gives it are
            copies, which it may change.
          seed: if given, `function(element, rng)` is called instead, with a numpy Generator
            that depends only on this, the epoch and the element: the same after a resume, on
            any thread and in any shard.
        """
        if seed is not None:
            seed = _int(seed, "map(seed={!r})", at_least=0)
        return self._with_step(Map(function, seed))

    def filter(self, function: Callable[[Any], Any]) -> Dataset:
        """Keeps the elements for which `function(element)` is true."""
        return self._with_step(Filter(function))

    def shuffle(self, seed: int) -> Dataset:
        """Orders all examples at random, in another way in each epoch.

        The order depends on nothing but `seed` and the number of the epoch.
        """
        seed = _int(seed, "shuffle(seed={!r})", at_least=0)
        if self._plan.root.num_examples is None:
            raise ValueError(
                "shuffle needs random access, which generated examples do not have. Shuffle what "
                "the generator reads, or use from_source or from_arrays."
            )
        return self._ordered(Shuffle(seed), "shuffle")

    def shard(self, count: int, index: int) -> Dataset:
        """Keeps every `count`-th example, from `index` on.

        Put it behind `shuffle`: then the shards are parts of one order, and a saved position is
        that of all shards, so that a run may continue with another number of them. Where the
        examples do not divide evenly, some shards have one more.

            dataset.shuffle(seed=0).shard(context.num_input_pipelines, context.input_pipeline_id)
        """
        count = _int(count, "shard(count={!r})", at_least=1)
        index = _int(index, "shard(index={!r})", at_least=0)
        if index >= count:
            raise ValueError(f"shard(count={count}, index={index}): index must be below count.")
        if any(isinstance(step, Filter) for step in self._plan.example_steps):
            raise ValueError("shard after filter is not possible: put shard before filter.")
        return self._ordered(Shard(count, index), "shard")

    def take(self, count: int) -> Dataset:
        """Keeps the first `count` elements: examples, or batches after `batch`."""
        count = _int(count, "take(count={!r})", at_least=0)
        plan = self._plan
        if plan.assembly is not None:
            self._check_on_host("take of batches", "Put take before batch.")
            limit = count if plan.batch_limit is None else min(count, plan.batch_limit)
            return self._with(batch_limit=limit)
        if any(isinstance(step, Filter) for step in plan.example_steps):
            raise ValueError(
                "take after filter is not possible on examples: put it before filter, or take "
                "batches, after batch."
            )
        if plan.order.epochs == 1:
            return self._ordered(Take(count), "take")
        if plan.root.num_examples is None:
            raise ValueError("take after repeat needs data of known length: put it before repeat.")
        limit = count if plan.order.limit is None else min(count, plan.order.limit)
        return self._with(order=dataclasses.replace(plan.order, limit=limit))

    def repeat(self, count: int | None = None) -> Dataset:
        """Reads everything `count` times, or without end.

        Before `batch`, batches go over the border between two epochs; after it, each epoch
        ends with its own partial batch.
        """
        if count is not None:
            count = _int(count, "repeat(count={!r})", at_least=1)
        order = self._plan.order
        if order.limit is not None or self._plan.batch_limit is not None:
            raise ValueError("repeat after take is not possible here: put repeat before take.")
        epochs = None if count is None or order.epochs is None else order.epochs * count
        return self._with(order=dataclasses.replace(order, epochs=epochs))

    def batch(
        self, size: int, drop_remainder: bool = False, *, pad_to: Sequence[int] | None = None
    ) -> Dataset:
        """Groups examples into batches.

        Args:
          size: examples in a batch.
          drop_remainder: leave out a last batch that is not full.
          pad_to: lengths, as `[64, 128, 256]`. In each batch, all leaves that are not scalars
            are padded with zeros in their first dimension, to the first of these that holds
            the longest. There is one compiled program for each.
        """
        size = _int(size, "batch(size={!r})", at_least=1)
        if self._plan.assembly is not None:
            raise ValueError(f"batch({size}) after batch({self._plan.assembly.size}): batch once.")
        if pad_to is not None:
            self._check_on_host(
                "batch(pad_to=...)", "Rows of arrays have one length: leave it out."
            )
        assembly = Assembly(
            size,
            drop_remainder,
            epochs=self._plan.order.epochs,
            pad_to=None if pad_to is None else PadTo(tuple(pad_to)),
        )
        return self._with(assembly=assembly)

    def prefetch(self, examples: int, *, threads: int = 1) -> Dataset:
        """Reads, maps and filters examples ahead of their use, on threads of its own.

        Worth it where that waits for files or runs code that frees the interpreter's lock. What
        comes after `batch` is not done ahead. The order, and all positions, stay the same.

        Args:
          examples: how many may be ahead; a few batches of them.
          threads: that work at the same time.
        """
        examples = _int(examples, "prefetch(examples={!r})", at_least=1)
        threads = _int(threads, "prefetch(threads={!r})", at_least=1)
        return self._with(ahead=examples, threads=threads)

    def describe(self, batch_size: int | None = None) -> None:
        """Prints structure, shapes, dtypes and bytes of a batch, which it reads for that.

        Args:
          batch_size: examples in a batch; for a dataset without `batch`.
        """
        assembly = self._plan.assembly
        size = batch_size or (1 if assembly is None else assembly.size)
        source = self.source(size, host_columns=True)
        try:
            print(describe(source))
        finally:
            source.close()

    def source(
        self, batch_size: int, *, drop_remainder: bool = False, host_columns: bool = False
    ) -> Source:
        """Returns a source that reads from the start.

        Args:
          batch_size: examples in each batch.
          drop_remainder: leave partial batches out, whatever `batch` said.
          host_columns: put columns that are no numbers into `Stack.host_columns`, instead of
            refusing them.

        Raises:
          ValueError: the dataset is batched to another size.
        """
        plan = self._plan
        assembly = plan.assembly or Assembly(batch_size)
        if assembly.size != batch_size:
            raise ValueError(
                f"The dataset is batched with batch({assembly.size}), but batch_size={batch_size} "
                "is needed here. Use params['batch_size'], or leave batch out."
            )
        drop_remainder = drop_remainder or assembly.drop_remainder
        assembly = dataclasses.replace(assembly, drop_remainder=drop_remainder)
        if isinstance(plan.root, ResidentRoot):
            return ResidentSource(plan.root.columns, plan.order, plan.cuts(assembly))
        if (
            isinstance(plan.root, ColumnsRoot)
            and plan.gathers
            and not plan.batch_steps
            and plan.batch_limit is None
        ):
            columns, kept = plan.root.columns, {}
            if host_columns:
                pair, kept = HostColumns().take_out(columns.pair)
                columns = Columns.of(pair)
            return ArraySource(columns, plan.order, plan.cuts(assembly), kept)
        return BatchSource(
            PlanReader(plan, assembly),
            batch_size=batch_size,
            # What `batch` left whole, a function of batches may have made partial.
            drop_remainder=drop_remainder and bool(plan.batch_steps),
            host_columns=host_columns,
        )

    def _with(self, **changes: Any) -> Dataset:
        return Dataset(dataclasses.replace(self._plan, **changes))

    def _with_step(self, step: Map | Filter) -> Dataset:
        name = type(step).__name__.lower()
        self._check_on_host(name, "Do that in model_fn, or to the arrays before from_arrays.")
        if self._plan.assembly is None:
            return self._with(example_steps=(*self._plan.example_steps, step))
        if self._plan.batch_limit is not None:
            raise ValueError("map and filter after take of batches: put take last.")
        return self._with(batch_steps=(*self._plan.batch_steps, step))

    def _check_on_host(self, what: str, instead: str) -> None:
        if isinstance(self._plan.root, ResidentRoot):
            raise ValueError(
                f"{what} is not possible with from_arrays(device_resident=True), whose examples "
                f"are on the devices. {instead} Or leave device_resident out."
            )

    def _ordered(self, step: Shuffle | Shard | Take, name: str) -> Dataset:
        # Functions of single examples come to the same before and after a change of order.
        order = self._plan.order
        if self._plan.assembly is not None:
            raise ValueError(f"{name} after batch would keep batches together: put it before.")
        if order.epochs != 1:
            raise ValueError(f"{name} after repeat would mix the epochs: put it before.")
        return self._with(order=dataclasses.replace(order, steps=(*order.steps, step)))


def _int(value: Any, name: str, *, at_least: int) -> int:
    """Returns `value`, of any integer type, as an int."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < at_least:
        raise ValueError(f"{name.format(value)} needs an int of at least {at_least}.")
    return number
