"""All that changes from one training step to the next."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
    """The state of training after `step` updates.

    Attributes:
      step: global step, int32 scalar.
      params: the variables that the optimizer changes.
      model_state: the model's other variables by collection, e.g. `{"batch_stats": ...}`.
      opt_state: the optimizer's state.
    """

    step: jax.Array
    params: Any
    model_state: Any
    opt_state: Any

    @property
    def variables(self) -> dict[str, Any]:
        """The model's variables by collection, as evaluation, prediction and export use them."""
        return {"params": self.params, **self.model_state}
