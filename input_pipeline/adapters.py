"""From whatever input_fn returns to a source."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from input_pipeline.batch_axes import BatchAxes, FrontReader
from input_pipeline.batch_source import BatchSource
from input_pipeline.dataset import Dataset
from input_pipeline.iterables import IterableReader
from input_pipeline.layout import joined, split
from input_pipeline.libraries import (
    grain_data,
    huggingface,
    pandas_frames,
    tf_data,
    tfds_source,
    torch_data,
)
from input_pipeline.reader import BatchReader
from input_pipeline.source import Source

_ACCEPTED = """one of
  - (features, labels), or features alone: arrays in any nested dict or tuple
  - an iterable, iterator or generator of batches, each (features, labels) or features; or a
    function without arguments that returns one
  - a pandas DataFrame
  - a Dataset of this package
  - of batches: a grain MapDataset, IterDataset or DataLoader, a tf.data.Dataset
    or a torch DataLoader
  - of examples: a tfds.data_source, a Hugging Face datasets.Dataset or a map-style torch Dataset
  - a Source"""

_LIBRARIES = {
    "datasets": huggingface.adapt,  # before torch: an IterableDataset is one of torch's, too
    "grain": grain_data.adapt,
    "tensorflow": tf_data.adapt,
    "tensorflow_datasets": tfds_source.adapt,
    "torch": torch_data.adapt,
    "pandas": pandas_frames.adapt,
}


def make_source(
    data: Any,
    *,
    batch_size: int,
    drop_remainder: bool = False,
    host_columns: bool = False,
    batch_axis: Mapping[str, int] | None = None,
) -> Source:
    """Returns a source of batches of `batch_size` examples.

    Args:
      data: what input_fn returned:
        `(features, labels)` or features, as numpy or jax arrays or pandas columns
        `[num_examples, ...]` in any nested dict, tuple or namedtuple; a plain tuple of two is
        always `(features, labels)`;
        a list, iterable, iterator or generator of batches, each `(features, labels)` or
        features, or a function without arguments that returns one (which can start over). An
        iterator must be a new one in each call: to resume, one counts from where it is given.
        No error that `itertools.chain` hides in itself (a StopIteration out of a `map` in it)
        can be told from the end;
        a `Dataset`; a `Source`, which is returned as it is; a DataFrame; or a dataset or
        loader of grain, tf.data, tfds, torch or Hugging Face.
      batch_size: examples in each batch, at least 1.
      drop_remainder: leave batches with fewer examples out instead of padding them.
      host_columns: put columns of a features dict that hold no numbers (strings, bytes) into
        `Stack.host_columns`, instead of refusing them.
      batch_axis: name of a tensor, such as `features/image` or `labels`, -> which dimension of
        it is the batch, in arrays and in batches that others made; the first where it is not
        named. What the source gives has it in front. A `Dataset`, and libraries' datasets of
        examples, are batched in front to begin with.

    Raises:
      TypeError: `data` is something else.
      ValueError: arrays differ in their number of examples or hold no numbers; or the data is
        batched to another size.
    """
    if isinstance(data, Source):
        if data.batch_size != batch_size:
            raise ValueError(
                f"The source has batch_size={data.batch_size}, but {batch_size} is needed here."
            )
        return data
    axes = BatchAxes(batch_axis or {})
    if isinstance(data, Mapping | tuple) or _is_array(data):
        data = joined(axes.to_front(split(data)))
    found = _adapted(data, batch_size)
    if isinstance(found, Dataset):
        return found.source(batch_size, drop_remainder=drop_remainder, host_columns=host_columns)
    return BatchSource(
        FrontReader(found, axes) if axes.axes else found,
        batch_size=batch_size,
        drop_remainder=drop_remainder,
        host_columns=host_columns,
    )


def _adapted(data: Any, batch_size: int) -> Dataset | BatchReader:
    """Returns what reads `data`: a dataset of examples or batches, or a reader of batches."""
    if isinstance(data, Dataset):
        return data
    packages = _packages_of(data)
    for library, adapt in _LIBRARIES.items():
        if library in packages and (found := adapt(data, batch_size)) is not None:
            return found
    if isinstance(data, Mapping | tuple) or _is_array(data):
        return Dataset.from_arrays(data)
    if _is_function_without_arguments(data):
        return IterableReader(lambda: _iterator_of(data), batch_size=batch_size)
    if inspect.isgenerator(data) and inspect.getgeneratorstate(data) == inspect.GEN_CLOSED:
        raise ValueError(
            "input_fn returned a generator that has been read to its end or closed before. Make a "
            "new one in each call, or return the generator function itself."
        )
    if isinstance(data, list) and len(data) == 2 and _outline(data[0]) != _outline(data[1]):
        raise TypeError(
            "input_fn returned a list of two entries, and a list is one of batches; but the second "
            "differs from the first, as labels do from features. Return a tuple instead of the "
            "list: return features, labels."
        )
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | set | frozenset):
        return IterableReader(
            lambda: iter(data),
            batch_size=batch_size,
            reopens=not isinstance(data, Iterator),
            length=len(data) if isinstance(data, list) else None,
        )
    raise TypeError(f"input_fn returned {_describe(data)}. Expected {_ACCEPTED}.")


def _packages_of(data: Any) -> set[str]:
    """Returns the packages that the classes of `data` and of the leaves in it are from; whoever
    has an object of a library has imported that."""
    objects = [data]
    if isinstance(data, Mapping | tuple):
        objects += jax.tree_util.tree_leaves(data)
    return {base.__module__.partition(".")[0] for entry in objects for base in type(entry).mro()}


def _outline(batch: Any) -> Any:
    """Returns what the batches of one input share: their structure, and the number of dimensions
    and dtype of each array."""
    leaves, structure = jax.tree_util.tree_flatten(batch, is_leaf=_is_list_of_text)
    return structure, [(np.ndim(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]


def _is_list_of_text(data: Any) -> bool:
    """Says whether `data` is a column of strings, which is as long as its batch."""
    return isinstance(data, list) and all(isinstance(entry, str | bytes) for entry in data)


def _is_array(data: Any) -> bool:
    return all(hasattr(data, name) for name in ("__array__", "shape", "dtype"))


def _is_function_without_arguments(data: Any) -> bool:
    if not callable(data) or isinstance(data, type | Iterable):
        return False
    try:
        inspect.signature(data).bind()
    except (TypeError, ValueError):
        return False
    return True


def _iterator_of(function: Any) -> Iterator[Any]:
    batches = function()
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"The function that input_fn returned gave {_describe(batches)}. Expected an iterator "
            "or iterable of batches."
        )
    return iter(batches)


def _describe(data: Any) -> str:
    kind = type(data)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"a {module}{kind.__qualname__}"
