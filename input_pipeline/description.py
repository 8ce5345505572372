"""Says in words what a source gives."""

from __future__ import annotations

import jax
import numpy as np

from input_pipeline.layout import leaf_name
from input_pipeline.source import Source


def describe(source: Source) -> str:
    """Returns a line for each leaf of a batch: name, dtype, shape and bytes; and their sum."""
    pair = source.element_spec()
    if pair[0] is None:
        return "no batches"
    lines, total = [], 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(pair)[0]:
        name = leaf_name(path)
        size = int(np.prod(leaf.shape)) * leaf.dtype.itemsize
        total += size
        lines.append(f"{name}: {leaf.dtype} {list(leaf.shape)}, {size:,} bytes")
    batches = source.num_batches()
    number = "unknown or endless number of batches" if batches is None else f"{batches} batches"
    return "\n".join([*lines, f"{total:,} bytes per batch, {number}"])
