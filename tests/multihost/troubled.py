"""A script of one process of a job in which something goes wrong on process 1, or is done on
process 0 alone.

Usage: troubled.py <results_dir> <model_dir> <trouble>
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import jax

import estimator as est

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fakes import batches, dataset, mlp

STEPS = 20
TROUBLED_STEP = 7


class Trouble(est.hooks.Hook):
    """Does what its method is named by, behind the loop that ends at the troubled step."""

    def __init__(self, does: str, marker: Path, model: est.Estimator):
        self._do = getattr(self, does, lambda view: None)
        self._marker = marker
        self._model = model

    def next_step(self, step):
        return TROUBLED_STEP if step < TROUBLED_STEP else None

    def after_loop(self, view):
        return self._do(view) if view.step == TROUBLED_STEP else None

    def asks_to_stop(self, view):
        return "enough" if jax.process_index() == 1 else None

    def raises(self, view):
        if jax.process_index() == 1:
            raise ValueError("bad record 17")

    def reads_state_on_process_0(self, view):
        if jax.process_index() == 0:
            view.state()

    def evaluates_on_process_0(self, view):
        if jax.process_index() == 0:
            self._model.evaluate(lambda: dataset(8), steps=1)

    def exports_on_process_0(self, view):
        if jax.process_index() == 0:
            inputs = est.export.serving_input(next(batches(1, 1))[0])
            self._model.export_saved_model(self._marker.parent / "exports", inputs)

    def is_killed_as_process_0(self, view):
        if jax.process_index() == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def is_killed(self, view):
        if jax.process_index() == 1 and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def is_terminated(self, view):
        if jax.process_index() == 1 and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGTERM)


class TroubleBehindACheckpoint(Trouble):
    """The same once the checkpoints before it are whole: those who hear of them wait for them."""

    def after_save(self, step, path):
        pass


class Losses(est.hooks.Hook):
    """Keeps the loss of each step."""

    def __init__(self):
        self.of_step: dict[int, float] = {}

    def after_loop(self, view):
        steps = range(view.before + 1, view.step + 1)
        self.of_step.update(zip(steps, view.losses.tolist(), strict=True))


def broken_batches():
    for index, batch in enumerate(batches(400, 4)):
        if index == TROUBLED_STEP:
            raise ValueError("bad record 17")
        yield batch


def main(results_dir: str, model_dir: str, trouble: str) -> None:
    est.distributed.initialize(heartbeat_timeout_secs=10, shutdown_timeout_secs=10)
    index = jax.process_index()

    def input_fn(context):
        if trouble == "input_raises" and index == 1:
            return broken_batches()
        if trouble == "input_sticks" and index == 1:
            threading.Event().wait()
        return dataset(40).shard(context.num_input_pipelines, context.input_pipeline_id).repeat()

    losses = Losses()
    alone = trouble == "each_alone"
    model = est.Estimator(
        mlp,
        f"{model_dir}/{index}" if trouble == "other_model_dir" or alone else model_dir,
        est.RunConfig(
            devices=est.DeviceConfig(devices=jax.local_devices() if alone else None),
            iterations_per_loop=5,
            save_checkpoints_steps=5,
            watchdog_secs=5 if trouble == "input_sticks" else None,
        ),
        train_batch_size=8,
        eval_batch_size=8,
    )
    marker = Path(results_dir) / "marker"
    if trouble == "is_killed_in_a_save":
        hook = Trouble("is_killed", marker, model)
    else:
        hook = TroubleBehindACheckpoint(trouble, marker, model)
    model.train(input_fn, max_steps=STEPS, hooks=[losses, hook])
    (Path(results_dir) / f"{index}.json").write_text(json.dumps(losses.of_step))


if __name__ == "__main__":
    main(*sys.argv[1:])
