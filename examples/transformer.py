"""A language model whose parameters, optimizer and batches are split over the devices.

    JAX_NUM_CPU_DEVICES=8 python examples/transformer.py --layout tensor

It learns to write Python, byte by byte, from the standard library that it runs on. The layouts
compute the same and differ in what each device keeps and what goes between them:

    data     every device keeps all parameters, and works on its rows of the batch
    fsdp     each keeps its part of every array, and gathers a layer's while it works on that layer
    tensor   the devices of a pair work on the same rows, each with half of the heads and of the
             hidden units; pairs split the rest among them as above

Training goes on, or is evaluated, in any other layout: a checkpoint knows of none.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import estimator as est

BYTES = 256
HELD_OUT = 256
BATCH_SIZE = 32

RULES = [
    # Each head, and each hidden unit, belongs to one device of a pair.
    (".*/attention/(query|key|value)/kernel", P("fsdp", "model")),  # [width, heads, depth]
    (".*/attention/out/kernel", P("model", None, "fsdp")),  # [heads, depth, width]
    (".*/up/kernel", P("fsdp", "model")),
    (".*/down/kernel", P("model", "fsdp")),
    (".*/logits/kernel", P("fsdp", "model")),
    (".*/embedding", P(None, "fsdp")),
]


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a transformer."""

    blocks: int = 2
    width: int = 64
    heads: int = 4
    length: int = 64


class Block(nn.Module):
    """Attention to what came before, and a layer of hidden units."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        causal = nn.make_causal_mask(x[..., 0])
        y = nn.LayerNorm()(x)
        x += nn.MultiHeadDotProductAttention(self.heads, name="attention")(y, mask=causal)
        y = nn.gelu(nn.Dense(4 * width, name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(width, name="down")(y)


def model_fn(features, labels, mode, params):
    size = params["size"]
    tokens = features["tokens"]
    x = nn.Embed(BYTES, size.width, name="tokens")(tokens)
    x += nn.Embed(size.length, size.width, name="places")(jnp.arange(size.length))
    # What a block computes is not kept for its gradient, but computed again: less memory for more
    # work. Which parts are worth it, a model knows best.
    block = nn.remat(Block)
    for index in range(size.blocks):
        x = block(size.heads, name=f"block_{index}")(x)
    logits = nn.Dense(BYTES, name="logits")(nn.LayerNorm()(x)).astype(jnp.float32)

    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions={"next": logits[:, -1].argmax(-1)})
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(-1)
    warm_up = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 20, decay_steps=params["steps"])
    return est.EstimatorSpec(
        mode,
        loss=losses,
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(warm_up)),
        metrics={"bits_per_byte": losses / math.log(2), "accuracy": right(logits, labels)},
    )


def right(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns for each text the share of bytes that were foretold."""
    return (logits.argmax(-1) == labels).mean(-1)


def layout(name: str, devices: Sequence[Any]) -> est.DeviceConfig:
    """Returns where things lie on `devices`."""
    if name == "tensor":
        pair = 2 if len(devices) % 2 == 0 else 1
        return est.DeviceConfig(
            devices=devices,
            num_cores_per_replica=pair,
            fsdp_size=len(devices) // pair,
            shard_parameters=RULES,
        )
    if name == "fsdp":
        # In this small model, even small arrays are split.
        return est.DeviceConfig(devices=devices, shard_parameters="fsdp", fsdp_min_elements=1024)
    return est.DeviceConfig(devices=devices)


def read_texts(length: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns pairs of texts and what comes next in each place, both int32 `[texts, length]`: to
    train on, and to hold out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    source = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
    texts = source[: len(source) // (length + 1) * (length + 1)].reshape(-1, length + 1)
    _, first = np.unique(texts[:, :-1], axis=0, return_index=True)  # a text is kept once
    texts = np.random.default_rng(0).permutation(texts[first]).astype(np.int32)
    train, held_out = texts[HELD_OUT:], texts[:HELD_OUT]
    return (train[:, :-1], train[:, 1:]), (held_out[:, :-1], held_out[:, 1:])


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Runs the lesson and returns what the last evaluation measured."""
    parser = argparse.ArgumentParser(description="Train a small language model on many devices.")
    parser.add_argument("--model-dir", type=Path, help="default: a temporary folder")
    parser.add_argument("--steps", type=int, default=200, help="to train (default: 200)")
    parser.add_argument("--layout", choices=["data", "fsdp", "tensor"], default="fsdp")
    parser.add_argument("--microbatches", type=int, default=1, help="of each batch (default: 1)")
    parser.add_argument("--bfloat16", action="store_true", help="compute with fewer bits")
    args = parser.parse_args(argv)
    if args.model_dir is not None:
        return run(args, args.model_dir)
    with tempfile.TemporaryDirectory(prefix="transformer-") as model_dir:
        return run(args, Path(model_dir))


def run(args: argparse.Namespace, model_dir: Path) -> dict[str, float]:
    say = functools.partial(print, flush=True)
    size = Size()
    texts, held_out = read_texts(size.length)

    def train_input_fn():
        examples = ({"tokens": texts[0]}, texts[1])
        return est.input_pipeline.Dataset.from_arrays(examples).shuffle(seed=0).repeat()

    def held_out_input_fn():
        return {"tokens": held_out[0]}, held_out[1]

    def on(devices: est.DeviceConfig) -> est.Estimator:
        return est.Estimator(
            model_fn,
            model_dir=model_dir,
            params={"size": size, "steps": args.steps},
            config=est.RunConfig(
                devices=devices,
                gradient_accumulation_steps=args.microbatches,
                compute_dtype="bfloat16" if args.bfloat16 else None,
                log_step_count_steps=None,
            ),
            train_batch_size=BATCH_SIZE,
            eval_batch_size=BATCH_SIZE,
        )

    split = on(layout(args.layout, jax.devices()))
    batch = {"tokens": texts[0][:BATCH_SIZE]}, texts[1][:BATCH_SIZE]
    table = est.describe_sharding(split, batch)  # printed as it is, it shows all arrays
    say(f"Of {table.mesh_shape}, each device keeps {table.bytes_per_device:,} bytes. Of a block:")
    for row in table.rows:
        if row.name.startswith("params/block_0"):
            say(f"  {row.name} {list(row.shape)}: {row.spec}, {row.bytes_per_device:,} bytes")
    split.train(train_input_fn, hooks=[est.hooks.ProgressHook()], max_steps=args.steps)
    metrics = split.evaluate(held_out_input_fn)
    report(f"On {len(jax.devices())} devices", metrics)

    whole = on(layout("data", jax.devices()[:1]))
    again = whole.evaluate(held_out_input_fn)
    report("The same checkpoint on one", again)
    return metrics


def report(where: str, metrics: dict[str, float]) -> None:
    print(
        f"{where}, at step {metrics['global_step']}: {metrics['bits_per_byte']:.3f} bits per byte "
        f"of text never trained on, {metrics['accuracy']:.1%} of the next bytes foretold.",
        flush=True,
    )


if __name__ == "__main__":
    main()
