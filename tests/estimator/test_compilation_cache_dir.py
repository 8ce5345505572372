"""RunConfig(compilation_cache_dir=): a second start of the same script compiles nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import collections, json, sys
import flax.linen as nn, jax, numpy as np, optax
import estimator as est

def model_fn(features, labels, mode):
    predictions = nn.Dense(1)(features)[:, 0]
    return est.EstimatorSpec(mode, loss=(predictions - labels) ** 2, optimizer=optax.sgd(0.1))

config = est.RunConfig(compilation_cache_dir=sys.argv[1])
model = est.Estimator(
    model_fn, sys.argv[2], config, train_batch_size=4, eval_batch_size=4
)
events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **details: events.update([event]))
arrays = np.ones((8, 3), np.float32), np.ones(8, np.float32)
model.train(lambda: arrays, steps=2)
model.evaluate(lambda: arrays)
print(json.dumps(events))
"""


def misses_and_hits(cache_dir, model_dir) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(cache_dir), str(model_dir)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    events = json.loads(done.stdout.splitlines()[-1])
    prefix = "/jax/compilation_cache/cache_"
    return events.get(prefix + "misses", 0), events.get(prefix + "hits", 0)


@pytest.mark.slow
def test_a_second_start_trains_and_evaluates_without_a_compilation(tmp_path):
    misses, hits = misses_and_hits(tmp_path / "cache", tmp_path / "first")
    assert misses > 0

    assert misses_and_hits(tmp_path / "cache", tmp_path / "second") == (0, misses + hits)
