"""How long the import takes."""

from benchmarks.contest import AtMostMore, Contest, Contestant
from benchmarks.tasks import MLP

CONTEST = Contest(
    title="Import",
    about="From the start of a process to the end of its imports.",
    unit="s",
    subject="import estimator",
    contestants=[
        Contestant(name="import estimator", peer="imports:Estimator", task=MLP, fresh=True),
        Contestant(
            name="import jax, flax.linen, optax", peer="imports:Libraries", task=MLP, fresh=True
        ),
    ],
    targets=[AtMostMore(0.4, "import estimator", "import jax, flax.linen, optax")],
    rounds=11,
)
