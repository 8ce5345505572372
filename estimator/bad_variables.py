"""Names the variable of a train state that is no longer a number."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from estimator.state import TrainState


def first_bad_variable(state: TrainState) -> str | None:
    """Returns the name of a variable that must not be saved, or None: all of them are good.

    A parameter is bad if any number of it is NaN or infinite. The model's other variables and the
    optimizer's state hold infinities in good health (the best loss so far of a schedule, a mask),
    so they are bad only if there is a NaN in them.

    Args:
      state: on the devices, where it is judged; on many hosts all of them call this.

    Returns:
      Such as `params/Dense_0/kernel`, `batch_stats/BatchNorm_0/var` or
      `opt_state/0/mu/Dense_0/kernel`.
    """
    variables = {**state.variables, "opt_state": state.opt_state}
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(variables)]
    bad = [path for path, is_bad in zip(paths, _judged(variables).tolist(), strict=True) if is_bad]
    bad.sort(key=lambda path: path[0].key != "params")
    return jax.tree_util.keystr(bad[0], simple=True, separator="/") if bad else None


@jax.jit
def _judged(variables: Any) -> jax.Array:
    """Returns which leaves are bad, `[leaves]` bool."""

    def is_bad(path: Any, leaf: jax.Array) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jnp.array(False)
        if path[0].key == "params":
            return ~jnp.isfinite(leaf).all()
        return jnp.isnan(leaf).any()

    return jnp.array(
        [is_bad(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(variables)],
        dtype=bool,
    )
