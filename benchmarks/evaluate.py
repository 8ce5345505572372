"""Evaluating many examples."""

from benchmarks.contest import Contest, Contestant
from benchmarks.tasks import EVALUATE

CONTEST = Contest(
    title="Evaluate",
    about=(
        f"Loss and accuracy over {EVALUATE.examples:,} examples by the MLP, in batches of "
        f"{EVALUATE.batch_size:,}. What is timed is the whole call: input, checkpoint and, for "
        "TPUEstimator, a new graph included. By hand, sums stay on the device to the end."
    ),
    unit="examples/s",
    subject="Estimator",
    contestants=[
        Contestant(name="Estimator", peer="ours:Evaluate", task=EVALUATE),
        Contestant(name="by hand", peer="by_hand:Evaluate", task=EVALUATE),
        Contestant(name="Keras", peer="keras3:Evaluate", task=EVALUATE),
        Contestant(
            name="TPUEstimator",
            peer="tpu_estimator:Evaluate",
            task=EVALUATE,
            environment="tensorflow",
        ),
    ],
    targets=[],
)
