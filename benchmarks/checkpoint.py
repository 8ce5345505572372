"""What saving costs a training loop, and how long a run takes to go when it is told to.

    python benchmarks/checkpoint.py                # both questions
    python benchmarks/checkpoint.py --rounds 20

An MLP is trained whose state is about 100 MB: 12.6 million parameters in float32 and as many of
momentum. A step takes about 20 ms on two cores.

How the first question is measured: in one run of `Estimator.train` that saves every 300 steps.
Its steps fall into blocks of 100, three to a round. The first begins with a checkpoint and has all
the writing of it in the background: as a run that saves every 100 steps has in each. In the second
a thread writes as many bytes to one file and syncs it, which is the least that saving could cost
on this machine. The third has neither. A round takes a few seconds, so that what else the machine
does meets all three alike. A hook reads the clock behind the last loop of each block, when its
losses are there and before the checkpoint is begun. The table gives the medians over the rounds,
and the medians of what the first two blocks of a round lost against the third. A write that was
not over when its block was is counted: then the loss is more than the table says.

The second question is asked of a process of its own: it trains the same model in loops of ten
steps, gets SIGTERM between two looks at its log, and the time until it has exited is measured, its
last checkpoint written.

The machine should have nothing else to do: a checkpoint is written by threads that compete with
the loop for the cores.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import optax

import estimator as est

WIDTH = 2048
BATCH_SIZE = 16
PARAMETERS = 3 * WIDTH * (WIDTH + 1) + 10 * (WIDTH + 1)
BLOCK = 100
LOOP = 10
KINDS = ("saving", "writing", "plain")


def model_fn(features, labels, mode):
    x = features
    for _ in range(3):
        x = nn.relu(nn.Dense(WIDTH)(x))
    loss = optax.softmax_cross_entropy_with_integer_labels(nn.Dense(10)(x), labels)
    return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(1e-3, momentum=0.9))


def input_fn():
    rng = np.random.default_rng(0)
    examples = rng.standard_normal((1024, WIDTH), np.float32)
    labels = rng.integers(0, 10, 1024, np.int32)
    return est.input_pipeline.Dataset.from_arrays((examples, labels)).repeat()


def new_estimator(model_dir: str, save_every: int) -> est.Estimator:
    config = est.RunConfig(
        iterations_per_loop=LOOP,
        loop_shape="device_loop",
        save_checkpoints_steps=save_every,
        keep_checkpoint_max=2,
    )
    return est.Estimator(model_fn, model_dir, config, train_batch_size=BATCH_SIZE)


class Blocks(est.hooks.Hook):
    """Times the blocks, and writes in those of that kind; hooks of the user run before the saver.

    Attributes:
      secs: of each block of a kind, from the first checkpoint on.
      late: how many writes were not over at the end of the block that began with them.
    """

    def __init__(self, estimator: est.Estimator, path: Path):
        self.secs: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.late = 0
        self._estimator = estimator
        self._path = path
        self._bytes = np.random.default_rng(0).bytes(4 * 2 * PARAMETERS)
        self._write: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1)
        self._began: float | None = None

    def after_loop(self, view) -> None:
        if view.step % BLOCK:
            return
        jax.block_until_ready(view.losses)
        now = time.perf_counter()
        if self._began is not None:
            kind = KINDS[view.step // BLOCK % len(KINDS) - 1]
            self.secs[kind].append(now - self._began)
            if kind == "saving":
                latest = self._estimator.latest_checkpoint()
                self.late += not (latest or "").endswith(f"/{view.step - BLOCK}")
            elif kind == "writing" and self._write is not None:
                self.late += not self._write.done()
                self._write.result()
        begins = KINDS[view.step // BLOCK % len(KINDS)]
        if begins == "writing":
            self._write = self._thread.submit(self._write_bytes)
        if self._began is not None or begins == "saving":
            self._began = time.perf_counter()

    def end(self, view) -> None:
        self._thread.shutdown()

    def _write_bytes(self) -> None:
        self._path.unlink(missing_ok=True)
        with self._path.open("wb") as file:
            file.write(self._bytes)
            os.fsync(file.fileno())


def measure_loss(rounds: int) -> str:
    """Returns the answer to the first question as text."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as model_dir:
        estimator = new_estimator(model_dir, len(KINDS) * BLOCK)
        blocks = Blocks(estimator, Path(model_dir) / "bytes")
        estimator.train(input_fn, hooks=[blocks], steps=len(KINDS) * BLOCK * (rounds + 1))
        description = est.checkpoints.describe(model_dir)
    leaves = [*description.variables.values(), *description.training.values()]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    lines = [
        f"{size / 1e6:.0f} MB of state, blocks of {BLOCK} steps, {rounds} rounds",
        f"{'':10}{'ms/step':>10}{'range':>20}",
    ]
    for name, secs in blocks.secs.items():
        steps = [1000 * each / BLOCK for each in secs]
        spread = f"{min(steps):.1f} .. {max(steps):.1f}"
        lines.append(f"{name:10}{statistics.median(steps):>10.1f}{spread:>20}")
    for kind in KINDS[:2]:
        pairs = zip(blocks.secs[kind], blocks.secs["plain"], strict=True)
        lost = statistics.median(100 * (a / b - 1) for a, b in pairs)
        lines.append(f"lost by {kind} every {BLOCK} steps: {lost:.1f} %, the median")
    lines.append(f"writes that were not over at the end of their block: {blocks.late}")
    return "\n".join(lines)


def train_until_told(model_dir: str) -> None:
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    new_estimator(model_dir, 10**9).train(input_fn)


def measure_exit(rounds: int) -> str:
    """Returns the answer to the second question as text."""
    secs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as model_dir:
            process = subprocess.Popen(
                [sys.executable, __file__, "--train-in", model_dir],
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("step 100:"):  # comes a loop late: the next one runs
                    break
            process.send_signal(signal.SIGTERM)
            began = time.perf_counter()
            process.communicate()
            secs.append(time.perf_counter() - began)
            assert process.returncode == 143, process.returncode
            assert est.checkpoints.list(model_dir)[-1].step >= 100
    return (
        f"from SIGTERM to exit: {statistics.median(secs):.2f} s, the median of "
        f"{', '.join(f'{each:.2f}' for each in secs)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="of blocks with and without saving")
    parser.add_argument("--exits", type=int, default=3, help="processes that are told to go")
    parser.add_argument("--train-in", metavar="MODEL_DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train_in:
        train_until_told(args.train_in)
        return
    if args.rounds:
        print(measure_loss(args.rounds), flush=True)
    if args.exits:
        print(measure_exit(args.exits))


if __name__ == "__main__":
    main()
