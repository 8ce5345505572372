"""Training a small convnet, whose gradient XLA:CPU computes slowly inside a loop."""

from benchmarks import training
from benchmarks.contest import AtLeast, Contest
from benchmarks.tasks import CONVNET

CONTEST = Contest(
    title="Train a convnet",
    about=(
        f"Two convolutions ({CONVNET.width} and {2 * CONVNET.width} filters) and two dense layers, "
        f"28 x 28 pixels, Adam, batches of {CONVNET.batch_size}, default hooks. Loops and "
        f"executions of {CONVNET.loop} steps; 2 for the device loop and the scan, in which XLA:CPU "
        "runs the gradient of a filter many times slower than outside."
    ),
    unit="steps/s",
    subject="Estimator",
    contestants=[
        *training.estimators(CONVNET, device_loop=2),
        *training.peers(CONVNET, scan_loop=2),
    ],
    targets=[
        AtLeast(0.97, "Estimator", ("jit by hand",)),
        AtLeast(0.95, "Estimator", tuple(f"Estimator, {shape}" for shape in training.SHAPES)),
    ],
    secs=3.0,
)
