"""Training an MLP: steps so short that what is around them decides."""

from benchmarks import training
from benchmarks.contest import AtLeast, Contest, Contestant
from benchmarks.tasks import MLP

CONTEST = Contest(
    title="Train an MLP",
    about=(
        f"{MLP.example_shape[0]}-{MLP.width}-{MLP.classes}, Adam, batches of {MLP.batch_size} "
        f"shuffled from {MLP.examples:,} float32 examples in host memory, default hooks. Loops, "
        f"scans and executions of {MLP.loop} steps."
    ),
    unit="steps/s",
    subject="Estimator",
    contestants=[Contestant(name="Estimator", peer="ours:Train", task=MLP), *training.peers(MLP)],
    targets=[
        AtLeast(0.95, "Estimator", ("scan by hand",)),
        AtLeast(1.3, "Estimator", ("jit by hand",)),
        AtLeast(1.6, "Estimator", ("Keras, steps_per_execution",)),
        AtLeast(8, "Estimator", ("TPUEstimator",)),
    ],
    rounds=9,
)
