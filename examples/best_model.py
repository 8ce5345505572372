"""Train and evaluate by turns, stop when it gets no better, and keep the best model.

    python examples/best_model.py

The model is far too large for its 60 noisy examples, so after a while it learns their noise by
heart: the loss on examples that it has not seen falls, and rises again. Training stops soon
after, and what is exported is the model of the lowest point.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import flax.linen as nn
import numpy as np
import optax

import estimator as est


def model_fn(features, labels, mode):
    x = features["x"]
    for width in (256, 256):
        x = nn.relu(nn.Dense(width)(x))
    logits = nn.Dense(2)(x)
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"probabilities": nn.softmax(logits)})
    return est.EstimatorSpec(
        mode,
        loss=optax.softmax_cross_entropy_with_integer_labels(logits, labels),
        optimizer=optax.adam(1e-3),
        metrics={"accuracy": logits.argmax(-1) == labels},
    )


def examples(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns points in a plane and on which side of a circle they are: one in ten is wrong."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 2)).astype(np.float32)
    outside = np.linalg.norm(points, axis=1) > 1.2
    return {"x": points}, (outside ^ (rng.random(count) < 0.1)).astype(np.int32)


def run(model_dir: Path, max_steps: int) -> est.ScheduleResult:
    train, held_out = examples(60, seed=0), examples(2000, seed=1)
    estimator = est.Estimator(
        model_fn,
        model_dir,
        # A checkpoint every 20 steps, and so an evaluation.
        est.RunConfig(iterations_per_loop=20, save_checkpoints_steps=20),
        train_batch_size=32,
        eval_batch_size=512,
        predict_batch_size=512,
    )

    result = est.train_and_evaluate(
        estimator,
        est.TrainSpec(
            lambda: est.input_pipeline.Dataset.from_arrays(train).shuffle(seed=0).repeat(),
            max_steps=max_steps,
            hooks=[est.hooks.EarlyStoppingHook("loss", patience_steps=100)],
        ),
        est.EvalSpec(
            lambda: held_out,
            exporters=[est.export.BestExporter(est.export.serving_input(held_out[0]))],
        ),
    )

    for measured in est.hooks.read_eval_results(estimator.eval_dir()):
        print(f"step {measured.global_step:4}: held-out loss {measured.values['loss']:.4f}")
    best = Path(result.exports["best"])
    at_best = json.loads((best / "assets.extra" / "metrics.json").read_text())
    print(f"Stopped at step {result.metrics['global_step']} of {max_steps}.")
    print(f"The best was that of step {at_best['global_step']}: {best}")

    # The export needs none of the code above.
    served = est.export.load(best)["serving_default"](held_out[0])["probabilities"]
    right = served.argmax(-1) == held_out[1]
    print(f"Served, it is right in {right.mean():.1%} of the examples that it has never seen.")
    return result


def main(argv: Sequence[str] | None = None) -> est.ScheduleResult:
    parser = argparse.ArgumentParser(description="Stop early, and keep the best model.")
    parser.add_argument("--max-steps", type=int, default=2000)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="best-model-") as model_dir:
        return run(Path(model_dir), args.max_steps)


if __name__ == "__main__":
    main()
