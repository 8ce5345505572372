"""The loops that one would write by hand, in jax, flax.linen and optax."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Generator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.peers import linen_models
from benchmarks.peers.base import FixedWork, Peer, streamed
from benchmarks.tasks import LEARNING_RATE, Task


class Trainer:
    """A training state, its step and its data, which all loops here share."""

    def __init__(self, task: Task):
        class Network(nn.Module):
            @nn.compact
            def __call__(self, x):
                return linen_models.logits(task, x)

        self.task = task
        self.inputs, self.labels = task.data()
        self.network = Network()
        self.optimizer = optax.adam(LEARNING_RATE)
        self.params = jax.jit(self.network.init)(jax.random.key(0), self.inputs[:1])
        self.state = (self.params, jax.jit(self.optimizer.init)(self.params))

    def step(self, state, batch):
        params, opt_state = state
        inputs, labels = batch

        def mean_loss(params):
            return linen_models.losses(self.network.apply(params, inputs), labels).mean()

        loss, grads = jax.value_and_grad(mean_loss)(params)
        updates, opt_state = self.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss


class JitLoop(Trainer, Peer):
    """A jitted step; each batch is gathered and dispatched by itself."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.batches = task.shuffled()
        self.program = jax.jit(self.step, donate_argnums=0)
        self.measure(0.1)

    def measure(self, secs: float) -> float:
        started = time.perf_counter()
        steps = 0
        while time.perf_counter() < started + secs:
            rows = next(self.batches)
            self.state, loss = self.program(self.state, (self.inputs[rows], self.labels[rows]))
            steps += 1
        jax.block_until_ready((self.state, loss))
        return steps / (time.perf_counter() - started)


class ScanLoop(Trainer, Peer):
    """`lax.scan` over a superbatch of stacked batches; the next one is gathered and put on the
    device before the losses of this one are waited for."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.batches = task.shuffled()
        self.program = jax.jit(
            lambda state, superbatch: jax.lax.scan(self.step, state, superbatch), donate_argnums=0
        )
        self.next = self.superbatch()
        self.measure(0.1)

    def superbatch(self):
        rows = np.stack([next(self.batches) for _ in range(self.task.loop)])
        return jax.device_put((self.inputs[rows], self.labels[rows]))

    def measure(self, secs: float) -> float:
        """Before and after, one superbatch waits."""
        started = time.perf_counter()
        steps = 0
        while time.perf_counter() < started + secs:
            self.state, losses = self.program(self.state, self.next)
            self.next = self.superbatch()
            jax.block_until_ready(losses)
            steps += self.task.loop
        jax.block_until_ready(self.state)
        return steps / (time.perf_counter() - started)


class FirstStep(Trainer, Peer):
    """Makes a jitted step and takes it once."""

    def __init__(self, task: Task):
        super().__init__(task)
        rows = next(task.shuffled())
        step = jax.jit(self.step, donate_argnums=0)
        jax.block_until_ready(step(self.state, (self.inputs[rows], self.labels[rows])))


class PredictBatches(Trainer, Peer):
    """A jitted model; two batches are computed while the results of an earlier one are read."""

    ahead = 2

    def __init__(self, task: Task):
        super().__init__(task)
        self.program = jax.jit(
            lambda params, inputs: linen_models.predictions(self.network.apply(params, inputs))
        )
        self.measure(0.1)

    def batches(self) -> Generator[dict[str, np.ndarray]]:
        """Yields the predictions of batch after batch, over and over."""
        waiting: collections.deque = collections.deque()
        for start in itertools.cycle(range(0, self.task.examples, self.task.batch_size)):
            outputs = self.program(self.params, self.inputs[start : start + self.task.batch_size])
            for leaf in outputs.values():
                leaf.copy_to_host_async()
            waiting.append(outputs)
            if len(waiting) > self.ahead:
                yield jax.device_get(waiting.popleft())

    def measure(self, secs: float) -> float:
        return streamed(self.batches(), lambda batch: len(batch["class"]), secs)


class PredictExamples(PredictBatches):
    """The same, and each example of a batch by itself."""

    def examples(self) -> Generator[dict[str, np.ndarray]]:
        """Yields the predictions of example after example."""
        for batch in self.batches():
            names = list(batch)
            for values in zip(*batch.values(), strict=True):
                yield dict(zip(names, values, strict=True))

    def measure(self, secs: float) -> float:
        return streamed(self.examples(), lambda _: 1, secs)


class Evaluate(Trainer, FixedWork):
    """A jitted step that adds up loss and accuracy on the device; read at the end."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.program = jax.jit(self.sums)
        self.work = task.examples
        self.run()

    def sums(self, params, totals, inputs, labels):
        logits = jnp.asarray(self.network.apply(params, inputs))
        loss = linen_models.losses(logits, labels).sum()
        return totals + jnp.stack([loss, (logits.argmax(-1) == labels).sum()])

    def run(self) -> None:
        totals = np.zeros(2, np.float32)
        for start in range(0, self.task.examples, self.task.batch_size):
            rows = slice(start, start + self.task.batch_size)
            totals = self.program(self.params, totals, self.inputs[rows], self.labels[rows])
        np.asarray(totals)
