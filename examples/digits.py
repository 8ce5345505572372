"""The whole life of a model, on handwritten digits: train, stop, resume, evaluate, predict, export.

    python examples/digits.py

The data are the 1,797 real digits that ship with scikit-learn, 8x8 pixels each. Run it with
JAX_NUM_CPU_DEVICES=8 and the same program trains on eight devices.
"""

from __future__ import annotations

import argparse
import functools
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import flax.linen as nn
import numpy as np
import optax
from sklearn.datasets import load_digits

import estimator as est

HELD_OUT = 360
BATCH_SIZE = 64

say = functools.partial(
    print, flush=True
)  # so that its lines and those of logging keep their order


def model_fn(features, labels, mode, params):
    """A perceptron with two hidden layers; they are made right here, where they are used."""
    training = mode == est.ModeKeys.TRAIN
    x = features["image"].reshape(params["batch_size"], -1)
    for width in params["hidden"]:
        x = nn.relu(nn.Dense(width)(x))
        x = nn.Dropout(0.3, deterministic=not training)(x)
    logits = nn.Dense(10)(x)

    predictions = {"digit": logits.argmax(-1), "probabilities": nn.softmax(logits)}
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs={"serving_default": est.export.PredictOutput(predictions)},
        )
    learning_rate = optax.cosine_decay_schedule(2e-3, decay_steps=params["steps"])
    return est.EstimatorSpec(
        mode,
        loss=optax.softmax_cross_entropy_with_integer_labels(logits, labels),
        optimizer=optax.adam(learning_rate),
        metrics={"accuracy": predictions["digit"] == labels},
    )


def read_digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns (images, labels) to train on and, always the same, to hold out."""
    pixels, digits = load_digits(return_X_y=True)
    images = np.asarray(pixels, np.float32).reshape(-1, 8, 8) / 16
    labels = np.asarray(digits, np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    held_out, train = order[:HELD_OUT], order[HELD_OUT:]
    return (images[train], labels[train]), (images[held_out], labels[held_out])


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Runs the lesson and returns what the last evaluation measured."""
    parser = argparse.ArgumentParser(description="Train, resume and export a classifier of digits.")
    parser.add_argument("--model-dir", type=Path, help="default: a temporary folder")
    parser.add_argument("--steps", type=int, default=1500, help="to train in all (default: 1500)")
    args = parser.parse_args(argv)

    logging.basicConfig(format="%(message)s")
    if not sys.stderr.isatty():  # on a terminal the progress bar says it all
        for package in ("estimator", "hooks"):
            logging.getLogger(package).setLevel(logging.INFO)

    if args.model_dir is not None:
        return run(args.model_dir, args.steps)
    with tempfile.TemporaryDirectory(prefix="digits-") as model_dir:
        return run(Path(model_dir), args.steps)


def run(model_dir: Path, steps: int) -> dict[str, float]:
    (images, labels), (test_images, test_labels) = read_digits()

    def train_input_fn():
        examples = ({"image": images}, labels)
        return est.input_pipeline.Dataset.from_arrays(examples).shuffle(seed=0).repeat()

    def test_input_fn():
        return {"image": test_images}, test_labels

    def new_estimator():
        return est.Estimator(
            model_fn,
            model_dir=model_dir,
            params={"hidden": (256, 256), "steps": steps},
            config=est.RunConfig(iterations_per_loop=50, log_step_count_steps=250),
            train_batch_size=BATCH_SIZE,
            eval_batch_size=BATCH_SIZE,
            predict_batch_size=BATCH_SIZE,
        )

    say(f"Training on {len(labels)} digits; {len(test_labels)} are held out.")
    hooks = [est.hooks.ProgressHook()]
    first = new_estimator()
    first.train(train_input_fn, hooks=hooks, max_steps=steps // 2)
    report("Half way", first.evaluate(test_input_fn))

    # Nothing is left of the first estimator but its checkpoint. The next one goes on from there,
    # with the very batch that would have come next.
    del first
    digits = new_estimator()
    say(f"Stopped there. A new estimator goes on from {digits.latest_checkpoint()}.")
    digits.train(train_input_fn, hooks=hooks, max_steps=steps)
    metrics = digits.evaluate(test_input_fn)
    report("Trained", metrics)

    predictions = list(digits.predict(lambda: {"image": test_images}))
    say("The first digits held out:", *test_labels[:20])
    say("The model reads them as:  ", *(prediction["digit"] for prediction in predictions[:20]))

    export_dir = digits.export_saved_model(
        model_dir / "export", est.export.serving_input({"image": test_images})
    )
    served = est.export.load(export_dir)["serving_default"]({"image": test_images})
    np.testing.assert_allclose(
        served["probabilities"],
        np.stack([prediction["probabilities"] for prediction in predictions]),
        atol=1e-5,
    )
    say("Exported, and read back without the model's code: it predicts the same.")
    return metrics


def report(when: str, metrics: dict[str, float]) -> None:
    say(
        f"{when}, at step {metrics['global_step']}: held-out accuracy {metrics['accuracy']:.4f}, "
        f"loss {metrics['loss']:.4f}."
    )


if __name__ == "__main__":
    main()
