"""Examples from the rows of pandas DataFrames; columns are a dict of features."""

from __future__ import annotations

from typing import Any

import jax

from input_pipeline.dataset import Dataset


def adapt(data: Any, batch_size: int) -> Dataset | None:
    """Returns a dataset of the rows of a DataFrame, or of a structure that holds some."""
    import pandas

    def columns_of(leaf: Any) -> Any:
        if isinstance(leaf, pandas.DataFrame):
            return {name: leaf[name] for name in leaf.columns}
        return leaf

    leaves = jax.tree_util.tree_leaves(data)
    if not any(isinstance(leaf, pandas.DataFrame) for leaf in leaves):
        return None
    return Dataset.from_arrays(jax.tree_util.tree_map(columns_of, data))
