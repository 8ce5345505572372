"""How a function of a batch runs on the replicas' shares of it, and what goes between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from estimator.gathering import Gathering
from estimator.mesh import Placement


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """The rows of a batch that one replica works on, and its way to the other replicas.

    With `replication="global"` there is one share, the whole batch, and nothing goes anywhere.

    Attributes:
      replica_id: which replica it is, int32 scalar.
      axis_name: over which collectives reach the others; None with one share.
      num_shares: shares that make up the batch.
      copies: replicas that work on the same rows, as all do on a batch that does not divide.
      gathering: of variables that are split over the fsdp axis; None where they come whole.
    """

    replica_id: Any = 0
    axis_name: str | tuple[str, ...] | None = None
    num_shares: int = 1
    copies: int = 1
    gathering: Gathering | None = None

    def whole(self, variables: Any) -> Any:
        """Returns variables as model_fn computes with them: not split over the fsdp axis."""
        return variables if self.gathering is None else self.gathering.whole(variables)

    def dropping(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fn` with a gradient that does not keep what `whole` has gathered in it."""
        return fn if self.gathering is None else self.gathering.dropping(fn)

    def key(self, key: jax.Array) -> jax.Array:
        """Returns a random key of this share's own; `key` itself if it is the whole batch."""
        return key if self.num_shares == 1 else jax.random.fold_in(key, self.replica_id)

    def total(self, tree: Any) -> Any:
        """Returns the sums of arrays over the shares."""
        if self.axis_name is None:
            return tree
        sums = lax.psum(tree, self.axis_name)
        return jax.tree.map(lambda leaf: leaf / self.copies, sums) if self.copies > 1 else sums

    def mean_state(self, tree: Any) -> Any:
        """Returns the means over the replicas of what each has made of common variables; of what
        has no mean (counters, keys), the value of the first replica."""
        if self.axis_name is None:
            return tree
        return jax.tree.map(
            lambda leaf: (
                lax.pmean(leaf, self.axis_name)
                if jnp.issubdtype(leaf.dtype, jnp.inexact)
                else self._first(leaf)
            ),
            tree,
        )

    def first(self, tree: Any) -> Any:
        """Returns the arrays of the first replica, bit for bit."""
        return tree if self.axis_name is None else jax.tree.map(self._first, tree)

    def _first(self, leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)  # parameters may be plain numbers
        if not jnp.issubdtype(leaf.dtype, jnp.number):
            return lax.all_gather(leaf, self.axis_name)[0]
        # The sum takes no more memory than the array, which may be large.
        own = jnp.where(self.replica_id == 0, leaf, jnp.zeros_like(leaf))
        return lax.psum(own, self.axis_name)

    def stacked(self, tree: Any) -> Any:
        """Returns the arrays of all shares, `[num_shares, ...]`, in their order."""
        if self.axis_name is None:
            return jax.tree.map(lambda leaf: leaf[None], tree)
        every = lax.all_gather(tree, self.axis_name)
        return jax.tree.map(lambda leaf: leaf[: self.num_shares], every)


class Replicas:
    """The replicas of a run, as the steps know them.

    Args:
      placement: the devices.
      gathering: of their variables.
    """

    def __init__(self, placement: Placement, gathering: Gathering):
        self._placement = placement
        self._gathering = gathering
        axes = placement.replica_axes
        self._axis_name = axes[0] if len(axes) == 1 else axes

    def run(
        self, fn: Callable[[Share, Any, Any], tuple[Any, Any]], common: Any, batch: Any
    ) -> tuple[Any, Any]:
        """Runs `fn(share, common, rows of batch)` for every share of a batch.

        Args:
          fn: returns a pair: what is the same for all shares, and arrays `[rows, ...]`.
          common: pytree that every share sees whole.
          batch: pytree of arrays `[batch, ...]`.

        Returns:
          The same pair, the arrays joined to `[batch, ...]` in the order of the batch.
        """
        place = self._placement
        if not place.per_replica:
            with place.tracing():
                return fn(Share(gathering=self._gathering), common, batch)
        splits = place.splits(jax.tree.leaves(batch)[0].shape[0])
        by_rows = PartitionSpec(place.replica_axes) if splits else PartitionSpec()

        def on_replica(common: Any, batch: Any) -> tuple[Any, Any]:
            share = Share(
                replica_id=lax.axis_index(self._axis_name),
                axis_name=self._axis_name,
                num_shares=place.num_replicas if splits else 1,
                copies=1 if splits else place.num_replicas,
            )
            return fn(share, common, batch)

        # The axes within a replica stay with the compiler, which splits its work over them.
        mapped = jax.shard_map(
            on_replica,
            mesh=place.mesh,
            in_specs=(PartitionSpec(), by_rows),
            out_specs=(PartitionSpec(), by_rows),
            axis_names=set(place.replica_axes),
            check_vma=False,  # a gradient is then the replica's own, to be weighed before the sum
        )
        return mapped(common, batch)
