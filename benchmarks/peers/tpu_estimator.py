"""TensorFlow's TPUEstimator, as it runs on a CPU."""

from __future__ import annotations

import tempfile
import time

import tensorflow as tf

from benchmarks import tasks
from benchmarks.peers.base import FixedWork, Peer, streamed
from benchmarks.tasks import LEARNING_RATE, Task

v1 = tf.compat.v1
tpu = v1.estimator.tpu
layers = v1.layers

_MANY_STEPS = 10**9


def mlp(task: Task, x):
    return layers.dense(layers.dense(x, task.width, tf.nn.relu), task.classes)


def convnet(task: Task, x):
    for filters in (task.width, 2 * task.width):
        x = layers.conv2d(x, filters, 3, padding="same", activation=tf.nn.relu)
        x = layers.max_pooling2d(x, 2, 2)
    x = layers.dense(layers.flatten(x), 8 * task.width, tf.nn.relu)
    return layers.dense(x, task.classes)


def attention(task: Task, x):
    (length,) = task.example_shape
    heads, size = tasks.TRANSFORMER_HEADS, task.width // tasks.TRANSFORMER_HEADS
    query, key, value = (
        tf.reshape(layers.dense(x, task.width), (-1, length, heads, size)) for _ in range(3)
    )
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * size**-0.5
    causal = tf.linalg.band_part(tf.ones((length, length), tf.bool), -1, 0)
    weights = tf.nn.softmax(tf.where(causal, scores, -1e9))
    mixed = tf.einsum("bhqk,bkhd->bqhd", weights, value)
    return layers.dense(tf.reshape(mixed, (-1, length, task.width)), task.width)


def layer_norm(x):
    """Has no place in `v1.layers`."""
    size = x.shape[-1]
    with v1.variable_scope(None, "layer_norm"):
        scale = v1.get_variable("scale", (size,), initializer=v1.ones_initializer())
        bias = v1.get_variable("bias", (size,), initializer=v1.zeros_initializer())
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, bias, scale, 1e-6)


def transformer(task: Task, tokens):
    embedding = v1.get_variable("tokens", (task.classes, task.width))
    positions = v1.get_variable("positions", (*task.example_shape, task.width))
    x = tf.nn.embedding_lookup(embedding, tokens) + positions
    for _ in range(tasks.TRANSFORMER_LAYERS):
        x = x + attention(task, layer_norm(x))
        hidden = layers.dense(layer_norm(x), 4 * task.width, tf.nn.gelu)
        x = x + layers.dense(hidden, task.width)
    return layers.dense(layer_norm(x), task.classes)


MODELS = {"mlp": mlp, "convnet": convnet, "transformer": transformer}


class Job(Peer):
    """A TPUEstimator for a task, in a folder of its own."""

    def __init__(self, task: Task):
        def model_fn(features, labels, mode, params):
            logits = MODELS[task.model](task, features)
            predictions = {
                "class": tf.argmax(logits, -1),
                "probabilities": tf.nn.softmax(logits),
            }
            if mode == tf.estimator.ModeKeys.PREDICT:
                return tpu.TPUEstimatorSpec(mode, predictions=predictions)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
            optimizer = v1.train.AdamOptimizer(LEARNING_RATE)
            return tpu.TPUEstimatorSpec(
                mode,
                loss=loss,
                train_op=optimizer.minimize(loss, v1.train.get_global_step()),
                eval_metrics=(
                    lambda labels, classes: {"accuracy": v1.metrics.accuracy(labels, classes)},
                    [labels, predictions["class"]],
                ),
            )

        self.task = task
        self.data = task.data()
        self.model_dir = tempfile.TemporaryDirectory(prefix="benchmark-")
        self.estimator = tpu.TPUEstimator(
            model_fn,
            model_dir=self.model_dir.name,
            config=tpu.RunConfig(tpu_config=tpu.TPUConfig(iterations_per_loop=task.loop)),
            use_tpu=False,
            train_batch_size=task.batch_size,
            eval_batch_size=task.batch_size,
            predict_batch_size=task.batch_size,
        )

    def train_input(self, params):
        dataset = tf.data.Dataset.from_tensor_slices(self.data)
        dataset = dataset.shuffle(self.task.examples).repeat()
        return dataset.batch(params["batch_size"], drop_remainder=True).prefetch(2)

    def eval_input(self, params):
        dataset = tf.data.Dataset.from_tensor_slices(self.data)
        return dataset.batch(params["batch_size"], drop_remainder=True).prefetch(2)

    def predict_input(self, params):
        dataset = tf.data.Dataset.from_tensor_slices(self.data[0]).repeat()
        return dataset.batch(params["batch_size"]).prefetch(2)

    def close(self) -> None:
        self.model_dir.cleanup()


class Stopwatch(v1.train.SessionRunHook):
    """Times the steps of a run, and then stops it; each call of its session is one step."""

    def __init__(self, secs: float, warm_up_steps: int):
        self.secs = secs
        self.warm_up_steps = warm_up_steps
        self.rate = 0.0

    def begin(self) -> None:
        self.steps = 0

    def after_run(self, run_context, run_values) -> None:
        self.steps += 1
        if self.steps == self.warm_up_steps:
            self.started = time.perf_counter()
        elif self.steps > self.warm_up_steps:
            elapsed = time.perf_counter() - self.started
            if elapsed >= self.secs:
                self.rate = (self.steps - self.warm_up_steps) / elapsed
                run_context.request_stop()


class Train(Job):
    """`TPUEstimator.train` with its default hooks."""

    def measure(self, secs: float) -> float:
        stopwatch = Stopwatch(secs, warm_up_steps=2 * self.task.loop)
        self.estimator.train(self.train_input, hooks=[stopwatch], steps=_MANY_STEPS)
        return stopwatch.rate


class FirstStep(Job):
    """`TPUEstimator.train` for one step."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.estimator.train(self.train_input, steps=1)


class PredictBatches(Job):
    """`TPUEstimator.predict(yield_single_examples=False)`."""

    single = False

    def __init__(self, task: Task):
        super().__init__(task)
        self.estimator.train(self.train_input, steps=1)

    def results(self):
        """Yields the predictions for all data, over and over."""
        return self.estimator.predict(self.predict_input, yield_single_examples=self.single)

    def measure(self, secs: float) -> float:
        return streamed(self.results(), lambda batch: len(batch["class"]), secs)


class PredictExamples(PredictBatches):
    """`TPUEstimator.predict`."""

    single = True

    def measure(self, secs: float) -> float:
        return streamed(self.results(), lambda _: 1, secs)


class Evaluate(Job, FixedWork):
    """`TPUEstimator.evaluate`."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.work = task.examples
        self.estimator.train(self.train_input, steps=1)

    def run(self) -> None:
        self.estimator.evaluate(self.eval_input, steps=self.task.examples // self.task.batch_size)
