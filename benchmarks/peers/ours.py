"""The Estimator."""

from __future__ import annotations

import collections
import contextlib
import logging
import tempfile
import time

import optax

import estimator as est
from benchmarks.peers import linen_models
from benchmarks.peers.base import FixedWork, Peer, repeat, streamed
from benchmarks.tasks import LEARNING_RATE, Task

_MANY_STEPS = 10**9
_MANY_PASSES = 10**6
_SETTLING_LOOPS = 40  # enough to time all shapes of the loop


class Job(Peer):
    """An Estimator for a task, in a folder of its own."""

    def __init__(self, task: Task, config: est.RunConfig):
        def model_fn(features, labels, mode):
            logits = linen_models.logits(task, features)
            if mode == est.ModeKeys.PREDICT:
                return est.EstimatorSpec(mode, predictions=linen_models.predictions(logits))
            return est.EstimatorSpec(
                mode,
                loss=linen_models.losses(logits, labels),
                optimizer=optax.adam(LEARNING_RATE),
                metrics={"accuracy": logits.argmax(-1) == labels}
                if mode == est.ModeKeys.EVAL
                else None,
            )

        self.data = task.data()
        self.model_dir = tempfile.TemporaryDirectory(prefix="benchmark-")
        self.estimator = est.Estimator(
            model_fn,
            model_dir=self.model_dir.name,
            train_batch_size=task.batch_size,
            eval_batch_size=task.batch_size,
            predict_batch_size=task.batch_size,
            config=config,
        )

    def train_input(self):
        return est.input_pipeline.Dataset.from_arrays(self.data).shuffle(seed=0).repeat()

    def close(self) -> None:
        self.model_dir.cleanup()


class Stopwatch(est.hooks.Hook):
    """Times the loops of a run well inside it, and then stops it.

    At both ends of the interval the input thread is as far ahead as ever and the losses of a
    loop have just arrived, so that the interval contains as much work as steps.
    """

    def __init__(self, secs: float, warm_up_loops: int = 5):
        self.secs = secs
        self.warm_up_loops = warm_up_loops
        self.rate = 0.0

    def begin(self, context) -> None:
        self.loops = 0

    def after_loop(self, view) -> str | None:
        self.loops += 1
        if self.loops == self.warm_up_loops:
            len(view.losses)  # waits for them
            self.first_step, self.started = view.step, time.perf_counter()
        elif self.loops > self.warm_up_loops and time.perf_counter() >= self.started + self.secs:
            len(view.losses)
            elapsed = time.perf_counter() - self.started
            self.rate = (view.step - self.first_step) / elapsed
            return "measured"
        return None


class Train(Job):
    """`Estimator.train` with the default hooks: loss, summaries and speed every 100 steps, a
    checkpoint when 600 seconds are over."""

    def __init__(self, task: Task, loop_shape: str = "auto"):
        super().__init__(task, self.config(task, loop_shape))
        # Of a run that promises to be long, so that it is worth to try shapes.
        settle = Stopwatch(0, warm_up_loops=_SETTLING_LOOPS if loop_shape == "auto" else 1)
        self.estimator.train(self.train_input, hooks=[settle], steps=_MANY_STEPS)

    def config(self, task: Task, loop_shape: str) -> est.RunConfig:
        return est.RunConfig(iterations_per_loop=task.loop, loop_shape=loop_shape)

    def measure(self, secs: float) -> float:
        stopwatch = Stopwatch(secs)
        self.estimator.train(self.train_input, hooks=[stopwatch], steps=_MANY_STEPS)
        return stopwatch.rate


class TrainWithoutHooks(Train):
    """No logs, no summaries, no checkpoint but the last."""

    def config(self, task: Task, loop_shape: str) -> est.RunConfig:
        return est.RunConfig(
            iterations_per_loop=task.loop,
            loop_shape=loop_shape,
            log_step_count_steps=None,
            save_summary_steps=None,
            save_checkpoints_secs=10**9,
        )


class TrainWithHooks(Train):
    """A log line and summaries every 100 steps, a checkpoint every 1,000."""

    def config(self, task: Task, loop_shape: str) -> est.RunConfig:
        logging.basicConfig(level=logging.INFO)
        return est.RunConfig(
            iterations_per_loop=task.loop,
            loop_shape=loop_shape,
            log_step_count_steps=100,
            save_summary_steps=100,
            save_checkpoints_steps=1_000,
        )


class FirstStep(Job):
    """`Estimator.train` to the end of its first step."""

    def __init__(self, task: Task):
        super().__init__(task, est.RunConfig(iterations_per_loop=task.loop))
        with contextlib.suppress(_Finished):
            self.estimator.train(self.train_input, hooks=[_EndAtOnce()], steps=1)


class _Finished(Exception):
    """The step is done. As an error it keeps the run from saving what it has trained."""


class _EndAtOnce(est.hooks.Hook):
    def after_loop(self, view) -> None:
        len(view.losses)  # waits for them
        raise _Finished


class FirstCheckpoint(Job):
    """`Estimator.train` for one step, until it is saved."""

    def __init__(self, task: Task):
        super().__init__(task, est.RunConfig(iterations_per_loop=task.loop))
        self.estimator.train(self.train_input, steps=1)


class PredictBatches(Job):
    """`Estimator.predict(yield_single_examples=False)`."""

    single = False

    def __init__(self, task: Task):
        super().__init__(task, est.RunConfig(iterations_per_loop=task.loop))
        self.estimator.train(self.train_input, steps=1)
        self.measure(0.1)

    def results(self, passes: int):
        """Yields the predictions for all data, `passes` times."""

        def input_fn():
            return est.input_pipeline.Dataset.from_arrays(self.data[0]).repeat(passes)

        return self.estimator.predict(input_fn, yield_single_examples=self.single)

    def measure(self, secs: float) -> float:
        return streamed(self.results(_MANY_PASSES), lambda batch: len(batch["class"]), secs)


class PredictExamples(PredictBatches):
    """`Estimator.predict`."""

    single = True

    def measure(self, secs: float) -> float:
        return streamed(self.results(_MANY_PASSES), lambda _: 1, secs)


class PredictCall(PredictBatches):
    """The whole call of `Estimator.predict(yield_single_examples=False)` for all data, once."""

    def measure(self, secs: float) -> float:
        rows = len(self.data[0])
        return rows * repeat(lambda: collections.deque(self.results(1), maxlen=0), secs)


class Evaluate(Job, FixedWork):
    """`Estimator.evaluate` with a metric on the device."""

    def __init__(self, task: Task):
        super().__init__(task, est.RunConfig(iterations_per_loop=task.loop))
        self.work = task.examples
        self.estimator.train(self.train_input, steps=1)
        self.run()

    def run(self) -> None:
        self.estimator.evaluate(lambda: self.data)
