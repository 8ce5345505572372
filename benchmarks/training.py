"""Who takes part in every contest of training."""

from __future__ import annotations

import dataclasses

from benchmarks.contest import Contestant
from benchmarks.tasks import Task


def peers(task: Task, *, scan_loop: int | None = None) -> list[Contestant]:
    """Returns all contestants but the estimator.

    Args:
      task: what is trained.
      scan_loop: steps of one scan, if not `task.loop`.
    """
    scan_task = dataclasses.replace(task, loop=scan_loop or task.loop)
    return [
        Contestant(name="scan by hand", peer="by_hand:ScanLoop", task=scan_task),
        Contestant(name="jit by hand", peer="by_hand:JitLoop", task=task),
        Contestant(
            name="Keras, steps_per_execution",
            peer="keras3:Train",
            task=task,
            arguments={"steps_per_execution": task.loop},
        ),
        Contestant(name="Keras", peer="keras3:Train", task=task),
        Contestant(
            name="NNX, cached_partial",
            peer="flax_nnx:Train",
            task=task,
            arguments={"cached": True},
        ),
        Contestant(name="NNX, nnx.jit", peer="flax_nnx:Train", task=task),
        Contestant(
            name="TPUEstimator",
            peer="tpu_estimator:Train",
            task=task,
            environment="tensorflow",
        ),
    ]


SHAPES = ("device_loop", "unrolled", "per_step")


def estimators(task: Task, *, device_loop: int | None = None) -> list[Contestant]:
    """Returns the estimator with each shape of the loop, "auto" first.

    Args:
      task: what is trained.
      device_loop: steps of one device loop, if not `task.loop`.
    """
    short = dataclasses.replace(task, loop=device_loop or task.loop)
    return [
        Contestant(name="Estimator", peer="ours:Train", task=task),
        *(
            Contestant(
                name=f"Estimator, {shape}",
                peer="ours:Train",
                task=short if shape == "device_loop" else task,
                arguments={"loop_shape": shape},
            )
            for shape in SHAPES
        ),
    ]
