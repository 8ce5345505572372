"""Steps per second of Estimator.train against the two loops that one would write by hand.

    python benchmarks/train_loop.py                    # the MLP, then the convnet
    python benchmarks/train_loop.py --model mlp --rounds 21

The contestants train the same model, with the same optimizer, on shuffled batches of the same
10,000 float32 examples in host memory:

    estimator  `Estimator.train` with an `input_pipeline.Dataset` and the default hooks: loss,
               summaries and speed every 100 steps, a checkpoint when 600 seconds are over.
    scan       `lax.scan` over a superbatch of stacked batches; the next one is gathered and put
               on the device before the losses of this one are waited for.
    jit        a jitted step; each batch is gathered, put on the device and dispatched by itself.

How it is measured: in rounds, in one process; each round times every contestant once, in an order
that rotates. What is timed is steady state: before the rounds all programs are compiled, and
Estimator.train has had `Task.settle` steps to choose its loop shape (--verbose tells which;
--loop-shape sets it). The hand-written loops are timed from one point where the device is idle to
the next. Estimator.train starts and stops threads and saves a checkpoint at its end, which a long
training does not notice; so a hook reads the clock at the ends of two loops well inside one call,
each time after it has waited for the losses of that loop. At both ends of the interval the input
thread is as far ahead as ever, so that the interval contains as much work as steps.

The machine should have nothing else to do: the contestants have different numbers of threads, and
where these compete with other programs, the ratios say little.

The convnet is measured over few steps in short loops, because on a CPU they are slow inside a loop
on the device, as in `scan`: XLA runs the gradient of a filter many times slower there than in a
program of its own.

The table gives the medians over the rounds of steps per second, their range, and the median of
the ratio to `scan` and to `jit` in the same round.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import flax.linen as nn
import jax
import numpy as np
import optax

import estimator as est

EXAMPLES = 10_000
CLASSES = 10


def mlp(x):
    x = nn.relu(nn.Dense(128)(x))
    return nn.Dense(CLASSES)(x)


def convnet(x):
    for features in (32, 64):
        x = nn.relu(nn.Conv(features, (3, 3))(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
    x = nn.relu(nn.Dense(256)(x.reshape(x.shape[0], -1)))
    return nn.Dense(CLASSES)(x)


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, and how much of it a round measures.

    Attributes:
      name: for the table.
      logits: makes layers inline and returns `[batch, CLASSES]`.
      example_shape: of one example.
      batch_size: examples a step.
      loop: steps in one superbatch, and the estimator's iterations_per_loop.
      steps: measured in a round, a multiple of `loop`.
      settle: that the estimator trains before the rounds, likewise.
    """

    name: str
    logits: Callable
    example_shape: tuple[int, ...]
    batch_size: int
    loop: int
    steps: int
    settle: int

    def __post_init__(self) -> None:
        if self.steps % self.loop:
            raise ValueError(f"steps={self.steps} must be a multiple of loop={self.loop}.")

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns EXAMPLES examples, float32 `[n, *example_shape]`, and labels, int32 `[n]`."""
        rng = np.random.default_rng(0)
        examples = rng.standard_normal((EXAMPLES, *self.example_shape), np.float32)
        return examples, rng.integers(0, CLASSES, EXAMPLES, np.int32)


TASKS = {
    "mlp": Task("mlp", mlp, (64,), batch_size=32, loop=100, steps=10_000, settle=30_000),
    "convnet": Task("convnet", convnet, (28, 28, 1), batch_size=128, loop=2, steps=4, settle=20),
}


def loss_of(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


class HandWritten:
    """A training state and the step that both hand-written loops share."""

    def __init__(self, task: Task):
        class Network(nn.Module):
            @nn.compact
            def __call__(self, x):
                return task.logits(x)

        self.task = task
        self.examples, self.labels = task.data()
        self.network = Network()
        self.optimizer = optax.adam(1e-3)
        params = self.network.init(jax.random.key(0), self.examples[:1])
        self.state = (params, self.optimizer.init(params))
        self.batches = self.shuffled()

    def shuffled(self) -> Iterator[np.ndarray]:
        """Yields the indices of one batch after another, in a new order for each epoch."""
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(EXAMPLES)
            for start in range(0, EXAMPLES - self.task.batch_size + 1, self.task.batch_size):
                yield order[start : start + self.task.batch_size]

    def step(self, state, batch):
        params, opt_state = state
        examples, labels = batch

        def mean_loss(params):
            return loss_of(self.network.apply(params, examples), labels).mean()

        loss, grads = jax.value_and_grad(mean_loss)(params)
        updates, opt_state = self.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss


class JitLoop(HandWritten):
    """One dispatch a step."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.program = jax.jit(self.step, donate_argnums=0)
        self.run(task.loop)

    def run(self, steps: int) -> float:
        """Returns the seconds that `steps` steps take."""
        started = time.perf_counter()
        for _ in range(steps):
            rows = next(self.batches)
            batch = jax.device_put((self.examples[rows], self.labels[rows]))
            self.state, loss = self.program(self.state, batch)
        jax.block_until_ready((self.state, loss))
        return time.perf_counter() - started


class ScanLoop(HandWritten):
    """One dispatch a superbatch."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.program = jax.jit(
            lambda state, superbatch: jax.lax.scan(self.step, state, superbatch), donate_argnums=0
        )
        self.next = self.superbatch()
        self.run(2 * task.loop)

    def superbatch(self):
        rows = np.stack([next(self.batches) for _ in range(self.task.loop)])
        return jax.device_put((self.examples[rows], self.labels[rows]))

    def run(self, steps: int) -> float:
        """Returns the seconds that `steps` steps take; before and after, one superbatch waits."""
        started = time.perf_counter()
        for _ in range(steps // self.task.loop):
            self.state, losses = self.program(self.state, self.next)
            self.next = self.superbatch()
            jax.block_until_ready(losses)
        jax.block_until_ready(self.state)
        return time.perf_counter() - started


class Stopwatch(est.hooks.Hook):
    """Times the steps between two loop ends, counted from where training begins."""

    def __init__(self, warm_up: int, steps: int):
        self.warm_up = warm_up
        self.steps = steps

    def begin(self, context) -> None:
        self.start = context.step + self.warm_up
        self.stop = self.start + self.steps

    def after_loop(self, view) -> None:
        if view.step in (self.start, self.stop):
            jax.block_until_ready(view.losses)
            now = time.perf_counter()
            if view.step == self.start:
                self.started = now
            else:
                self.secs = now - self.started


class EstimatorLoop:
    """Estimator.train."""

    def __init__(self, task: Task, loop_shape: str):
        def model_fn(features, labels, mode):
            loss = loss_of(task.logits(features), labels)
            return est.EstimatorSpec(mode, loss=loss, optimizer=optax.adam(1e-3))

        self.task = task
        self.data = task.data()
        self.model_dir = tempfile.TemporaryDirectory(prefix="train-loop-")
        self.estimator = est.Estimator(
            model_fn,
            model_dir=self.model_dir.name,
            train_batch_size=task.batch_size,
            config=est.RunConfig(iterations_per_loop=task.loop, loop_shape=loop_shape),
        )
        self.estimator.train(self.input_fn, steps=task.settle)

    def input_fn(self):
        dataset = est.input_pipeline.Dataset.from_arrays(self.data)
        return dataset.shuffle(seed=0).repeat().batch(self.task.batch_size)

    def run(self, steps: int) -> float:
        """Returns the seconds that `steps` steps take inside a call of train."""
        loop = self.task.loop
        warm_up = max(loop, steps // 10 // loop * loop)
        stopwatch = Stopwatch(warm_up, steps)
        # When the clock stops there is still as much input to read ahead as when it started.
        cool_down = 4 * loop
        self.estimator.train(self.input_fn, hooks=[stopwatch], steps=warm_up + steps + cool_down)
        return stopwatch.secs


def measure(task: Task, rounds: int, loop_shape: str) -> dict[str, list[float]]:
    """Returns, for each contestant, its steps per second in each round."""
    ours = EstimatorLoop(task, loop_shape)
    loops = {"estimator": ours, "scan": ScanLoop(task), "jit": JitLoop(task)}
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    order = list(loops)
    for _ in range(rounds):
        for name in order:
            speeds[name].append(task.steps / loops[name].run(task.steps))
        order = order[1:] + order[:1]
    ours.model_dir.cleanup()
    return speeds


def speed(steps_per_sec: float) -> str:
    return f"{steps_per_sec:,.0f}" if steps_per_sec >= 100 else f"{steps_per_sec:.3g}"


def table(task: Task, speeds: dict[str, list[float]]) -> str:
    """Returns the result as text."""
    lines = [
        f"{task.name}: batch {task.batch_size}, {task.steps} steps a round, loops of {task.loop}, "
        f"{len(speeds['scan'])} rounds, {jax.device_count()} {jax.devices()[0].platform} device(s)",
        f"{'':12}{'steps/s':>10}{'range':>22}{'of scan':>10}{'of jit':>10}",
    ]
    for name, values in speeds.items():
        ratios = [
            statistics.median(a / b for a, b in zip(values, speeds[peer], strict=True))
            for peer in ("scan", "jit")
        ]
        spread = f"{speed(min(values))} .. {speed(max(values))}"
        lines.append(
            f"{name:12}{speed(statistics.median(values)):>10}{spread:>22}"
            f"{ratios[0]:>10.3f}{ratios[1]:>10.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["all", *TASKS], default="all")
    parser.add_argument("--rounds", type=int, help="default: 9 for the mlp, 3 for the convnet")
    parser.add_argument("--steps", type=int, help="measured in a round; default: see Task")
    parser.add_argument("--loop", type=int, help="steps in a loop; default: see Task")
    parser.add_argument("--loop-shape", default="auto", help="see RunConfig; default: auto")
    parser.add_argument("--verbose", action="store_true", help="show the estimator's log")
    args = parser.parse_args()
    if args.verbose:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("estimator").setLevel(logging.INFO)

    for name, task in TASKS.items():
        if args.model in ("all", name):
            task = dataclasses.replace(
                task, steps=args.steps or task.steps, loop=args.loop or task.loop
            )
            rounds = args.rounds or (9 if name == "mlp" else 3)
            print(table(task, measure(task, rounds, args.loop_shape)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
