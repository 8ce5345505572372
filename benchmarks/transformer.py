"""Training a small language model."""

from benchmarks import training
from benchmarks.contest import AtLeast, Contest
from benchmarks.tasks import TRANSFORMER, TRANSFORMER_HEADS, TRANSFORMER_LAYERS

CONTEST = Contest(
    title="Train a transformer",
    about=(
        f"{TRANSFORMER_LAYERS} layers, {TRANSFORMER.width} wide, {TRANSFORMER_HEADS} heads, "
        f"sequences of {TRANSFORMER.example_shape[0]} of {TRANSFORMER.classes} tokens, Adam, "
        f"batches of {TRANSFORMER.batch_size}, default hooks. Loops, scans and executions of "
        f"{TRANSFORMER.loop} steps."
    ),
    unit="steps/s",
    subject="Estimator",
    contestants=[*training.estimators(TRANSFORMER), *training.peers(TRANSFORMER)],
    targets=[
        AtLeast(0.97, "Estimator", ("jit by hand",)),
        AtLeast(0.95, "Estimator", tuple(f"Estimator, {shape}" for shape in training.SHAPES)),
    ],
    secs=3.0,
)
