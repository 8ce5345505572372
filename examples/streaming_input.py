"""Input that streams: from a generator of your own, or from grain.

    python examples/streaming_input.py          # a generator
    python examples/streaming_input.py --grain  # pip install grain

Each time the program trains for some steps, stops, and goes on in a new Estimator. The input goes
on as well: the model is shown every example of an epoch once, as if nothing had stopped.
"""

from __future__ import annotations

import argparse
import collections
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import numpy as np
import optax

import estimator as est

EXAMPLES = 96
BATCH_SIZE = 16


def example(number: int) -> tuple[dict[str, Any], Any]:
    """Returns one example as it may come out of a file: features, and a label."""
    x = np.sin(np.arange(4, dtype=np.float32) + number)
    return {"number": np.int32(number), "x": x}, x.sum()


def read_all() -> Iterator[tuple[dict[str, Any], Any]]:
    """Yields the examples of one epoch, one by one."""
    for number in range(EXAMPLES):
        yield example(number)


def generator_input_fn():
    # The function, not what it returns: it is called again for each epoch. To go on after a stop,
    # what came before in the epoch is read once more and dropped.
    return est.input_pipeline.Dataset.from_generator(read_all).repeat()


def grain_input_fn():
    import grain

    # Batches, as all libraries give them. To go on after a stop, grain is told where it stood.
    numbers = grain.MapDataset.source(range(EXAMPLES)).seed(0).shuffle().repeat()
    return numbers.map(example).batch(BATCH_SIZE)


def run(model_dir: str, input_fn, steps: int) -> collections.Counter[int]:
    """Trains in two sittings, and returns how often each example was trained on."""
    seen: collections.Counter[int] = collections.Counter()

    def model_fn(features, labels, mode):
        outputs = nn.Dense(1)(features["x"])[:, 0]
        return est.EstimatorSpec(
            mode,
            loss=(outputs - labels) ** 2,
            optimizer=optax.adam(0.01),
            host_call=(lambda number: seen.update(number.tolist()), [features["number"]]),
        )

    for until in (steps // 2, steps):
        estimator = est.Estimator(
            model_fn,
            model_dir,
            est.RunConfig(iterations_per_loop=4),
            train_batch_size=BATCH_SIZE,
        )
        estimator.train(input_fn, max_steps=until)
        print(f"Step {until}: {seen.total()} examples so far, {len(seen)} of them different.")
    print("Trained on an example between", min(seen.values()), "and", max(seen.values()), "times.")
    return seen


def main(argv: Sequence[str] | None = None) -> collections.Counter[int]:
    parser = argparse.ArgumentParser(description="Train on input that streams.")
    parser.add_argument("--grain", action="store_true", help="read it with grain")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args(argv)
    input_fn = grain_input_fn if args.grain else generator_input_fn
    with tempfile.TemporaryDirectory(prefix="streaming-") as model_dir:
        return run(model_dir, input_fn, args.epochs * EXAMPLES // BATCH_SIZE)


if __name__ == "__main__":
    main()
