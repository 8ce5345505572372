"""A script of one process of a job: trains, evaluates, exports and predicts; writes down what it
saw.

Usage: whole_life.py <results_dir> <model_dir> <max_steps> <deployment>
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

import estimator as est

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fakes import dataset, mlp, numbered

ROWS_TO_EVALUATE = 13


def train_input_fn(context):
    shard = context.num_input_pipelines, context.input_pipeline_id
    return dataset(40).shuffle(seed=0).shard(*shard).repeat()


def eval_input_fn(context):
    """7 rows of 13 go to the first of two processes, 6 to the second; with so many columns that
    they travel as one array."""
    features, labels = numbered(ROWS_TO_EVALUATE)
    features |= {f"unused_{number}": labels for number in range(8)}
    parts = np.array_split(np.arange(ROWS_TO_EVALUATE), context.num_input_pipelines)
    mine = parts[context.input_pipeline_id]
    return {name: values[mine] for name, values in features.items()}, labels[mine]


def main(results_dir: str, model_dir: str, max_steps: int, deployment: str) -> None:
    est.distributed.initialize(heartbeat_timeout_secs=10, shutdown_timeout_secs=20)
    seen: list[tuple[int, list[int], float]] = []
    losses: list[float] = []

    def host_call(id, loss, step):
        seen.append((step, sorted(id.tolist()), float(loss)))

    class Losses(est.hooks.Hook):
        def after_loop(self, view):
            losses.extend(view.losses.tolist())

    model = est.Estimator(
        mlp,
        model_dir,
        est.RunConfig(
            iterations_per_loop=7,
            save_checkpoints_steps=10,
            input=est.InputPipelineConfig(deployment=deployment),
        ),
        params={"host_call": host_call},
        train_batch_size=8,
        eval_batch_size=4,
        predict_batch_size=4,
    )
    serving = est.export.serving_input({"x": numbered(1)[0]["x"]})
    metrics, exports = est.train_and_evaluate(
        model,
        est.TrainSpec(train_input_fn, max_steps=max_steps, hooks=[Losses()]),
        est.EvalSpec(eval_input_fn, exporters=[est.export.BestExporter(serving)]),
    )
    results = {
        "losses": losses,
        "host_call": seen,
        "last evaluation": metrics,
        "exports": exports,
        "export": model.export_saved_model(f"{model_dir}/by_hand", serving),
        "evaluation": model.evaluate(eval_input_fn),
        "two steps": model.evaluate(eval_input_fn, steps=2, name="two"),
        "own": [float(p["output"]) for p in model.predict(eval_input_fn)],
        "gathered": [float(p["output"]) for p in model.predict(eval_input_fn, gather=True)],
    }
    (Path(results_dir) / f"{jax.process_index()}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
