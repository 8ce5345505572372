"""The same training on the machines of a Ray cluster: one actor for each process of the job.

    pip install 'jax-estimator[ray]'
    python examples/ray_training.py --processes 2 --model-dir /shared/ray-example

Ray says where the actors live; from then on they are a job like any other. Each is told its place
by the arguments of `est.distributed.initialize`, and calls the training function that one process
alone would call. The numbers are those of one process.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import numpy as np
import optax

import estimator as est


def model_fn(features, labels, mode):
    hidden = nn.relu(nn.Dense(16)(features["x"]))
    outputs = nn.Dense(1)(hidden)[:, 0]
    return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.adam(0.01))


def input_fn(context):
    """Returns this process's share of each batch: 8 of 32 rows if there are four of them."""
    x = np.random.default_rng(0).normal(size=(512, 3)).astype(np.float32)
    data = est.input_pipeline.Dataset.from_arrays(({"x": x}, np.sin(x.sum(-1))))
    return (
        data.shuffle(seed=0).shard(context.num_input_pipelines, context.input_pipeline_id).repeat()
    )


def train(model_dir: str, max_steps: int) -> list[float]:
    """Trains, and returns the loss of each step. Knows nothing of Ray, nor of how many run it."""
    losses: list[float] = []
    keep = est.hooks.LambdaHook(after_loop=lambda view: losses.extend(view.losses.tolist()))
    estimator = est.Estimator(
        model_fn, model_dir, est.RunConfig(iterations_per_loop=25), train_batch_size=32
    )
    estimator.train(input_fn, hooks=[keep], max_steps=max_steps)
    return losses


class Worker:
    """One process of the job, which Ray runs somewhere in its cluster."""

    def free_address(self) -> str:
        """Returns `host:port` of this process, under which the others can reach it."""
        import ray

        with socket.socket() as taken:
            taken.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{taken.getsockname()[1]}"

    def train(self, coordinator: str, count: int, index: int, *arguments: Any) -> list[float]:
        est.distributed.initialize(coordinator, num_processes=count, process_id=index)
        return train(*arguments)


def train_on_ray(processes: int, model_dir: str, max_steps: int) -> list[float]:
    """Trains on as many actors; returns the loss of each step.

    Args:
      processes: of the job. Each takes one CPU core; for GPUs, add `num_gpus` to the options.
      model_dir: a folder that all machines see.
      max_steps: global step at which training ends.

    Raises:
      ray.exceptions.RayError: an actor failed; as they fail together, the first one's error.
    """
    import ray

    workers = [
        ray.remote(Worker).options(num_cpus=1, scheduling_strategy="SPREAD").remote()
        for _ in range(processes)
    ]
    try:
        coordinator = ray.get(workers[0].free_address.remote())
        losses = ray.get(
            [
                worker.train.remote(coordinator, processes, index, model_dir, max_steps)
                for index, worker in enumerate(workers)
            ]
        )
    finally:
        for worker in workers:
            ray.kill(worker)
    return losses[0]  # the losses are those of the whole batch, and so the same on all


def main(argv: Sequence[str] | None = None) -> list[float]:
    import ray

    parser = argparse.ArgumentParser(description="Train on the actors of a Ray cluster.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--model-dir", help="a folder that all machines see; a temporary one here")
    parser.add_argument("--ray-address", help="of the cluster; one on this machine if left out")
    args = parser.parse_args(argv)
    if args.ray_address is None:
        ray.init("local", num_cpus=args.processes, include_dashboard=False)
    else:
        ray.init(args.ray_address)
    with tempfile.TemporaryDirectory(prefix="ray-training-") as temporary:
        losses = train_on_ray(args.processes, args.model_dir or temporary, args.max_steps)
    print(f"{args.processes} processes: loss {losses[0]:.4f} at first, {losses[-1]:.6f} at last.")
    ray.shutdown()
    return losses


if __name__ == "__main__":
    main()
