"""How long until the first step is done."""

from benchmarks.contest import AtMost, Contest, Contestant
from benchmarks.tasks import MLP

CONTEST = Contest(
    title="Cold start",
    about=(
        "From the start of a process to the end of its first training step: imports, data, the "
        "MLP, compilation, one step; no compilation cache."
    ),
    unit="s",
    subject="Estimator",
    contestants=[
        Contestant(name="Estimator", peer="ours:FirstStep", task=MLP, fresh=True),
        Contestant(
            name="Estimator, until the step is saved",
            peer="ours:FirstCheckpoint",
            task=MLP,
            fresh=True,
        ),
        Contestant(name="jit by hand", peer="by_hand:FirstStep", task=MLP, fresh=True),
        Contestant(name="Keras", peer="keras3:FirstStep", task=MLP, fresh=True),
        Contestant(name="NNX, nnx.jit", peer="flax_nnx:FirstStep", task=MLP, fresh=True),
        Contestant(
            name="TPUEstimator",
            peer="tpu_estimator:FirstStep",
            task=MLP,
            environment="tensorflow",
            fresh=True,
        ),
    ],
    targets=[AtMost(1.2, "Estimator", "jit by hand")],
)
