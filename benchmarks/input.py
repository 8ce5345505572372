"""Batches per second of each kind of input against iterating over its library directly.

    python benchmarks/input.py
    python benchmarks/input.py --only torch grain --rounds 11

The data are 10,000 images of 28 x 28 uint8 with int32 labels, in shuffled batches of 128. Both
contestants end with numpy arrays: the direct one with one batch after the other, the source with
stacks of 10, as the estimator reads them. Both keep the last 20 batches, as whoever reads ahead
does: written again and again into one place in the cache, small batches would look faster than any
consumer could have them. A library that is not installed is left out.

    arrays    a Dataset over the arrays, against rows gathered by hand
    copying   a generator that gathers rows: stacking is one more copy of what it does
    decoding  a generator that decompresses each image

How it is measured: in rounds, in one process; each round opens, warms up and times both
contestants, in an order that alternates. The warm-up uses up what an iterator may have read ahead.
The table gives the medians of batches per second and of the ratio in the same round.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import estimator as est

BATCH_SIZE = 128
STACK = 10
WARM_UP = 50

IMAGES = np.random.default_rng(0).integers(16, size=(10_000, 28, 28), dtype=np.uint8)
LABELS = np.random.default_rng(1).integers(10, size=10_000, dtype=np.int32)


def shuffled_batches() -> Iterator[Any]:
    """The loop that one would write by hand; without end."""
    for epoch in range(1_000_000):
        order = np.random.default_rng([0, epoch]).permutation(len(IMAGES))
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            yield IMAGES[rows], LABELS[rows]


def arrays() -> tuple[Callable[[], Iterator[Any]], Any]:
    dataset = est.input_pipeline.Dataset.from_arrays((IMAGES, LABELS))
    return shuffled_batches, dataset.shuffle(seed=0).repeat().batch(BATCH_SIZE)


def copying() -> tuple[Callable[[], Iterator[Any]], Any]:
    return shuffled_batches, shuffled_batches


def decoding() -> tuple[Callable[[], Iterator[Any]], Any]:
    files = [zlib.compress(image.tobytes()) for image in IMAGES]

    def batches() -> Iterator[Any]:
        for epoch in range(1_000_000):
            order = np.random.default_rng([0, epoch]).permutation(len(files))
            for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
                rows = order[start : start + BATCH_SIZE]
                images = b"".join(zlib.decompress(files[row]) for row in rows)
                yield np.frombuffer(images, np.uint8).reshape(-1, 28, 28), LABELS[rows]

    return batches, batches


def grain() -> tuple[Callable[[], Iterator[Any]], Any]:
    import grain

    class Examples:
        def __len__(self) -> int:
            return len(IMAGES)

        def __getitem__(self, index: Any) -> Any:
            return IMAGES[index], LABELS[index]

    dataset = grain.MapDataset.source(Examples()).shuffle(seed=0).repeat().batch(BATCH_SIZE)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
    batches = dataset.to_iter_dataset(options)
    return lambda: iter(batches), batches


def tf_data() -> tuple[Callable[[], Iterator[Any]], Any]:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).shuffle(10_000, seed=0)
    dataset = dataset.repeat().batch(BATCH_SIZE).prefetch(4)
    return dataset.as_numpy_iterator, dataset


def torch() -> tuple[Callable[[], Iterator[Any]], Any]:
    import torch
    from torch.utils import data

    dataset = data.TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    sampler = data.RandomSampler(dataset, replacement=True, num_samples=10_000_000)
    loader = data.DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)
    return lambda: ([tensor.numpy() for tensor in batch] for batch in loader), loader


def huggingface() -> tuple[Callable[[], Iterator[Any]], Any]:
    import datasets

    features = datasets.Features(
        {"image": datasets.Array2D((28, 28), "uint8"), "label": datasets.Value("int32")}
    )
    table = datasets.Dataset.from_dict({"image": IMAGES, "label": LABELS}, features=features)

    table = table.repeat(1000)
    return lambda: table.with_format("numpy").iter(BATCH_SIZE), table


CONTESTS = {
    "arrays": (arrays, "numpy"),
    "copying": (copying, "numpy"),
    "decoding": (decoding, "numpy"),
    "grain": (grain, "grain"),
    "tf.data": (tf_data, "tensorflow"),
    "torch": (torch, "torch"),
    "huggingface": (huggingface, "datasets"),
}


def direct_rate(direct: Callable[[], Iterator[Any]], secs: float) -> float:
    batches = direct()
    kept = collections.deque(maxlen=2 * STACK)
    for _ in range(WARM_UP):
        kept.append(next(batches))
    start, read = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < secs:
        kept.append(next(batches))
        read += 1
    return read / elapsed


def source_rate(data: Any, secs: float) -> float:
    source = est.input_pipeline.make_source(data, batch_size=BATCH_SIZE)
    for _ in range(WARM_UP // STACK):
        source.read(STACK)
    start, read = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < secs:
        stack = source.read(STACK)
        assert stack is not None
        read += stack.steps
    source.close()
    return read / elapsed


def contest(name: str, rounds: int, secs: float) -> None:
    make, _ = CONTESTS[name]
    direct, data = make()
    rates: dict[str, list[float]] = {"direct": [], "source": []}
    for index in range(rounds):
        pair = [
            ("direct", lambda: direct_rate(direct, secs)),
            ("source", lambda: source_rate(data, secs)),
        ]
        for contestant, measure in pair if index % 2 else reversed(pair):
            rates[contestant].append(measure())
    ratio = statistics.median(
        ours / theirs for ours, theirs in zip(rates["source"], rates["direct"], strict=True)
    )
    print(
        f"{name:12} {statistics.median(rates['direct']):12,.0f} "
        f"{statistics.median(rates['source']):12,.0f} {ratio:8.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CONTESTS, default=list(CONTESTS))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--secs", type=float, default=0.3, help="about, for each measurement")
    options = parser.parse_args()
    print(f"{'':12} {'direct':>12} {'source':>12} {'ratio':>8}   (batches/s)")
    for name in options.only:
        if importlib.util.find_spec(CONTESTS[name][1]) is None:
            print(f"{name:12} is not installed")
        else:
            contest(name, options.rounds, options.secs)


if __name__ == "__main__":
    main()
