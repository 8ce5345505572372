"""What the hooks cost."""

import dataclasses

from benchmarks.contest import AtLeast, Contest, Contestant
from benchmarks.tasks import MLP

TASK = dataclasses.replace(MLP, width=1024, batch_size=256)
FIXED = {"loop_shape": "device_loop"}  # nothing differs but the hooks

CONTEST = Contest(
    title="Hooks",
    about=(
        "A log line and summaries every 100 steps and an asynchronous checkpoint every 1,000, "
        f"against none of them, in training an MLP with {TASK.width:,} hidden units on batches of "
        f"{TASK.batch_size}."
    ),
    unit="steps/s",
    subject="with hooks",
    contestants=[
        Contestant(name="with hooks", peer="ours:TrainWithHooks", task=TASK, arguments=FIXED),
        Contestant(name="without", peer="ours:TrainWithoutHooks", task=TASK, arguments=FIXED),
    ],
    targets=[AtLeast(0.97, "with hooks", ("without",))],
    secs=10.0,
)
