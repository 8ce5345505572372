"""Batches from a torch DataLoader, as numpy arrays that share the tensors' memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from input_pipeline.dataset import Dataset
from input_pipeline.iterables import IterableReader
from input_pipeline.reader import BatchReader
from input_pipeline.source import Position

logger = logging.getLogger(__name__)


def adapt(data: Any, batch_size: int) -> BatchReader | Dataset | None:
    """Returns a reader of a DataLoader, a dataset of the examples of a map-style Dataset, or one
    of the rows of tensors.

    Raises:
      ValueError: the loader makes batches of another size.
      TypeError: `data` is an iterable Dataset without a loader.
    """
    import torch
    from torch.utils import data as torch_data

    if isinstance(data, torch_data.DataLoader):
        if data.batch_size is not None and data.batch_size != batch_size:
            raise ValueError(
                f"The DataLoader has batch_size={data.batch_size}, but {batch_size} is needed "
                "here. Use params['batch_size']."
            )
        length = None
        if not isinstance(data.dataset, torch_data.IterableDataset):
            with contextlib.suppress(TypeError):  # a sampler need not have a length
                length = len(data)
        return TorchReader(
            data,
            lambda: iter(data) if data.persistent_workers else _ClosableIterator(iter(data)),
            batch_size=batch_size,
            length=length,
            library="torch",
        )
    if isinstance(data, torch_data.IterableDataset):
        raise TypeError(
            "input_fn returned a torch IterableDataset, which has no batches. Wrap it in a "
            "DataLoader(dataset, batch_size=params['batch_size'])."
        )
    if isinstance(data, torch_data.Dataset):
        return Dataset.from_source(data).map(to_numpy)  # type: ignore[arg-type]
    leaves = jax.tree_util.tree_leaves(data)
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return Dataset.from_arrays(to_numpy(data))
    return None


class TorchReader(IterableReader):
    """Reads a DataLoader.

    Args:
      loader: that is read.
      open_batches, options: as of an `IterableReader`.
    """

    def __init__(self, loader: Any, open_batches: Callable[[], Iterator[Any]], **options: Any):
        super().__init__(open_batches, **options)
        self._loader = loader

    def seek(self, position: Position) -> None:
        super().seek(position)
        if position["batches"] > 0 and _has_an_order_of_its_own(self._loader):
            logger.warning(
                "The DataLoader shuffles without a seed, so its order is another than before: some "
                "examples come again and others not at all. Give it generator=torch.Generator()"
                ".manual_seed(...)."
            )

    def next(self) -> tuple[Any] | None:
        element = super().next()
        if element is None:
            return None
        batch = element[0]
        # Torch makes a list of what was a tuple in the dataset.
        return (to_numpy(tuple(batch) if type(batch) is list else batch),)


class _ClosableIterator:
    """A DataLoader's iterator, with a way to end its worker processes now.

    By itself it ends them once nothing refers to it: while an error has a traceback, something
    does.
    """

    def __init__(self, iterator: Any):
        self._iterator = iterator

    def __next__(self) -> Any:
        return next(self._iterator)

    def __iter__(self) -> _ClosableIterator:
        return self

    def close(self) -> None:
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()


def _has_an_order_of_its_own(loader: Any) -> bool:
    from torch.utils import data as torch_data

    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(
        isinstance(sampler, torch_data.RandomSampler) and sampler.generator is None
        for sampler in samplers
    )


def to_numpy(tree: Any) -> Any:
    """Returns a tree with arrays in place of tensors."""
    return jax.tree_util.tree_map(_array_of, tree)


def _array_of(leaf: Any) -> Any:
    import torch

    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.dtype == torch.bfloat16:  # numpy has no such dtype of its own, and torch refuses
        return leaf.view(torch.int16).numpy(force=True).view(np.dtype(jax.numpy.bfloat16))
    return leaf.numpy(force=True)
