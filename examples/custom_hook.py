"""Hooks of your own: see what happens between two loops, and stop training for a reason.

    python examples/custom_hook.py

A loop of many steps runs on the devices at once; hooks run on the host between two of them. One
of these asks for control at exact steps, to keep the weights of those; the other one reads the
loss of every step, and stops once it is low enough.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import numpy as np
import optax

import estimator as est


class SnapshotHook(est.hooks.Hook):
    """Keeps the parameters of every multiple of `steps`.

    Attributes:
      snapshots: global step -> the parameters after it.
    """

    def __init__(self, steps: int):
        self._every = est.hooks.EverySteps(steps)
        self.snapshots: dict[int, Any] = {}

    def next_step(self, step):
        # The loop ends there, whatever iterations_per_loop is.
        return self._every.next_step(step)

    def after_loop(self, view):
        if self._every.due(view.before, view.step):
            # A copy: what is on the devices itself is gone after the next loop.
            self.snapshots[view.step] = view.state().params


class StopAtLossHook(est.hooks.Hook):
    """Stops training when the mean loss of the last `window` steps has come down to `target`."""

    def __init__(self, target: float, window: int = 20):
        self._target = target
        self._window = window
        self._losses = np.zeros(0)

    def after_loop(self, view):
        # One loss for every step of the loop; reading it waits for the devices.
        self._losses = np.append(self._losses, view.losses)[-self._window :]
        mean = self._losses.mean()
        if len(self._losses) == self._window and mean <= self._target:
            return f"the mean loss of {self._window} steps is {mean:.4f}"  # logged with the stop
        return None


def model_fn(features, labels, mode):
    outputs = nn.Dense(1)(features)[:, 0]
    return est.EstimatorSpec(mode, loss=(outputs - labels) ** 2, optimizer=optax.sgd(0.02))


def input_fn():
    x = np.random.default_rng(0).normal(size=(512, 3)).astype(np.float32)
    y = x @ np.array([2.0, -1.0, 0.5], np.float32) + 3.0
    return est.input_pipeline.Dataset.from_arrays((x, y)).shuffle(seed=0).repeat()


def run(model_dir: str, max_steps: int) -> SnapshotHook:
    snapshots = SnapshotHook(steps=25)
    estimator = est.Estimator(
        model_fn, model_dir, est.RunConfig(iterations_per_loop=40), train_batch_size=32
    )
    estimator.train(input_fn, hooks=[snapshots, StopAtLossHook(0.01)], max_steps=max_steps)

    for step, params in snapshots.snapshots.items():
        weights = ", ".join(f"{weight:5.2f}" for weight in params["Dense_0"]["kernel"][:, 0])
        print(f"step {step:3}: weights {weights}, bias {params['Dense_0']['bias'][0]:.2f}")
    print(f"The last checkpoint is {estimator.latest_checkpoint()}.")
    return snapshots


def main(argv: Sequence[str] | None = None) -> SnapshotHook:
    parser = argparse.ArgumentParser(description="Two hooks of one's own.")
    parser.add_argument("--max-steps", type=int, default=1000)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="custom-hook-") as model_dir:
        return run(model_dir, args.max_steps)


if __name__ == "__main__":
    main()
