from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import collections, json, sys
import jax, numpy as np
from estimator.runtime import Session, use_compilation_cache

events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **details: events.update([event]))
jax.jit(lambda x: x * 5)(1.0)  # compiled before the cache is chosen
events.clear()
for directory in sys.argv[1:]:
    use_compilation_cache(directory)
    with Session() as session:
        outputs = session.run(lambda x: {"loss": (x @ x.T).sum()}, (np.ones((8, 4), np.float32),))
    assert float(outputs["loss"]) == 256.0
print(json.dumps({name.rsplit("/", 1)[1]: count for name, count in events.items()}))
"""


def run(*directories) -> tuple[int, int]:
    """Runs a small program in a fresh process; returns cache hits and compilations."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, directories)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    events = json.loads(done.stdout)
    return events.get("cache_hits", 0), events.get("cache_misses", 0)


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    directory = tmp_path / "made" / "on the way"
    assert run(directory) == (0, 1)
    assert run(directory) == (1, 0)


@pytest.mark.slow
def test_a_process_may_change_to_another_cache(tmp_path):
    assert run(tmp_path / "one", tmp_path / "other") == (0, 2)
    assert run(tmp_path / "other") == (1, 0)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    from estimator.runtime import use_compilation_cache

    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        use_compilation_cache(tmp_path / "file")
