"""What saving costs a training loop, and how long a run takes to go when it is told to.

    python benchmarks/checkpoint.py                # both questions
    python benchmarks/checkpoint.py --rounds 20

An MLP is trained whose state is about 100 MB: 12.6 million parameters in float32 and as many of
momentum. A step takes about 20 ms on two cores.

How the first question is measured: calls of `Estimator.train` take turns, each for 500 steps. One
saves every 100 of them. In the next a thread writes as many bytes to a new file every 100 steps
instead, syncs it and removes the file before the last, which is the least that saving could cost
on this machine. The third does neither. A round of the three takes half a minute, so that what
else the machine does meets all alike. A hook reads the clock behind each 100 steps, when their
losses are there and before the next checkpoint is begun; the first 100 of each call have its start
in them and do not count. The table gives the medians over all others, and the medians over the
rounds of what the first two lost against the third. A write that was not over when the next was
due is counted: then the loss is more than the table says.

A virtual machine that gives free memory back to its host (free page reporting of a balloon) pays
for each new page of a file anew once that is two seconds old, ten times what a page costs
otherwise. Saving and writing pay alike.

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
CALL = 5 * BLOCK
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


def new_estimator(model_dir: str, save_every: int = 10**9) -> est.Estimator:
    config = est.RunConfig(
        iterations_per_loop=LOOP,
        loop_shape="device_loop",
        save_checkpoints_steps=save_every,
        keep_checkpoint_max=2,
    )
    return est.Estimator(model_fn, model_dir, config, train_batch_size=BATCH_SIZE)


class Blocks(est.hooks.Hook):
    """Times each block of steps but the first, before the saver sees its end.

    Attributes:
      secs: of each block.
      late: how many writes were not over at the end of the block that began with them.
    """

    def __init__(self) -> None:
        self.secs: list[float] = []
        self.late = 0
        self._began: float | None = None

    def after_loop(self, view) -> None:
        if view.step % BLOCK:
            return
        jax.block_until_ready(view.losses)
        if self._began is not None:
            self.secs.append(time.perf_counter() - self._began)
            self.late += not self.is_written(view.step - BLOCK)
        self.write()
        self._began = time.perf_counter()

    def is_written(self, step: int) -> bool:
        """Says whether what the block from `step` on began with is over."""
        return True

    def write(self) -> None:
        """Begins a write of the hook's own."""


class SavingBlocks(Blocks):
    """The blocks of a run that saves at the end of each."""

    def __init__(self, estimator: est.Estimator):
        super().__init__()
        self._estimator = estimator

    def is_written(self, step: int) -> bool:
        return (self._estimator.latest_checkpoint() or "").endswith(f"/{step}")


class WritingBlocks(Blocks):
    """Writes as many bytes to a file as a checkpoint has, and keeps two files."""

    def __init__(self, folder: Path):
        super().__init__()
        self._folder = folder
        self._bytes = np.random.default_rng(0).bytes(4 * 2 * PARAMETERS)
        self._thread = ThreadPoolExecutor(1)
        self._write: Future[None] | None = None

    def is_written(self, step: int) -> bool:
        assert self._write is not None
        if self._write.done():
            self._write.result()
        return self._write.done()

    def write(self) -> None:
        self._write = self._thread.submit(self._write_file)

    def end(self, view) -> None:
        self._thread.shutdown()

    def _write_file(self) -> None:
        path = self._folder / str(time.monotonic_ns())
        with path.open("wb") as file:
            file.write(self._bytes)
            os.fsync(file.fileno())
        for old in sorted(self._folder.iterdir())[:-2]:
            old.unlink()


def measure_loss(rounds: int) -> str:
    """Returns the answer to the first question as text."""
    phases: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    late = 0
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        files = Path(folder) / "files"
        files.mkdir()
        saving = new_estimator(f"{folder}/saving", save_every=BLOCK)
        other = new_estimator(f"{folder}/other")
        for _ in range(rounds):
            for kind, estimator, blocks in (
                ("saving", saving, SavingBlocks(saving)),
                ("writing", other, WritingBlocks(files)),
                ("plain", other, Blocks()),
            ):
                estimator.train(input_fn, hooks=[blocks], steps=CALL)
                phases[kind].append(blocks.secs)
                late += blocks.late
        description = est.checkpoints.describe(f"{folder}/saving")
    leaves = [*description.variables.values(), *description.training.values()]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    lines = [
        f"{size / 1e6:.0f} MB of state, blocks of {BLOCK} steps, {rounds} rounds",
        f"{'':10}{'ms/step':>10}{'range':>20}",
    ]
    for kind, secs in phases.items():
        steps = 1000 * np.ravel(secs) / BLOCK
        spread = f"{steps.min():.1f} .. {steps.max():.1f}"
        lines.append(f"{kind:10}{np.median(steps):>10.1f}{spread:>20}")
    medians = {kind: np.median(secs, axis=1) for kind, secs in phases.items()}
    for kind in KINDS[:2]:
        lost = 100 * np.median(medians[kind] / medians["plain"] - 1)
        lines.append(f"lost by {kind} every {BLOCK} steps: {lost:.1f} %, the median")
    lines.append(f"writes that were not over at the end of their block: {late}")
    return "\n".join(lines)


def train_until_told(model_dir: str) -> None:
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    new_estimator(model_dir).train(input_fn)


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
