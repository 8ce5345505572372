"""What several devices saved is read on more, on fewer, and on none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import estimator as est
from estimator.checkpoints import (
    CheckpointWriter,
    as_path,
    preservation_policy,
    restore_train_state,
    restore_variables,
)
from estimator.state import TrainState
from hooks import LoopView
from tests import fakes

ROOT = Path(fakes.__file__).parent.parent
VALUES = {
    "params/kernel": np.arange(64, dtype=np.float32).reshape(8, 8),
    "params/bias": np.arange(8, dtype=np.float32),
    "batch_stats/mean": np.linspace(0, 1, 8, dtype=np.float32),
}


def on(devices, sharded=True):
    """Returns shardings for arrays over the first dimension of so many devices."""
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    return lambda leaf: NamedSharding(
        mesh, PartitionSpec("data") if sharded and np.ndim(leaf) else PartitionSpec()
    )


def state_at(step, sharding):
    """Returns a state whose optimizer has made so many updates, placed on its devices."""
    optimizer = optax.adam(0.1)
    params = {name[7:]: value for name, value in VALUES.items() if name.startswith("params/")}
    opt_state = optimizer.init(params)
    for _ in range(step):
        _, opt_state = optimizer.update(params, opt_state)
    state = TrainState(
        step=np.int32(step),
        params=params,
        model_state={"batch_stats": {"mean": VALUES["batch_stats/mean"]}},
        opt_state=opt_state,
    )
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding(leaf)), state)


def abstract(state, sharding):
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding(leaf)), state
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A state that was written by four devices, each of which had a part; and its model_dir."""
    model_dir = as_path(tmp_path_factory.mktemp("sharded"))
    state = state_at(3, on(4))
    view = LoopView(
        mode="train",
        model_dir=model_dir,
        before=0,
        step=3,
        elapsed_secs=1.0,
        input_wait_secs=0.0,
        examples=8,
        input_position={"batches": 3},
        read_losses=lambda: np.zeros(3, np.float32),
        read_metrics=dict,
        read_state=lambda: state,
    )
    keep = preservation_policy(model_dir, newest=1, every_n_hours=None, best=None)
    with CheckpointWriter(model_dir, lambda: state, lambda view: None, keep) as writer:
        path = writer.save(view)
    return state, path, model_dir


@pytest.mark.parametrize(("devices", "sharded"), [(8, True), (2, True), (1, True), (3, False)])
def test_a_state_of_four_devices_is_restored_on_another_number(saved, devices, sharded):
    state, path, _ = saved
    wanted = abstract(state, on(devices, sharded))
    restored = restore_train_state(path, wanted)
    fakes.assert_equal(fakes.named(restored), fakes.named(state))
    for leaf, want in zip(jax.tree.leaves(restored), jax.tree.leaves(wanted), strict=True):
        assert leaf.sharding.is_equivalent_to(want.sharding, leaf.ndim)


def test_values_are_read_whole_however_they_were_sharded(saved):
    model_dir = saved[2]
    fakes.assert_equal(est.checkpoints.load_variables(model_dir), VALUES)
    kernel = est.checkpoints.load_variable(model_dir, "params/kernel")
    np.testing.assert_array_equal(kernel, VALUES["params/kernel"])


def test_parameters_are_restored_without_the_state_of_the_optimizer(saved, tmp_path):
    state, path, _ = saved
    alone = tmp_path / "3"
    shutil.copytree(path, alone)
    shutil.rmtree(alone / "training")
    only = {"params": {"bias": state.params["bias"]}}
    restored = restore_variables(alone, abstract(only, on(2)))
    fakes.assert_equal(fakes.named(restored), {"params/bias": VALUES["params/bias"]})


WITHOUT_DEVICES = """
import sys
import estimator as est

model_dir, path = sys.argv[1:]
(found,) = est.checkpoints.list(model_dir)
print(found.step, found.path == est.checkpoints.latest(model_dir))
print(est.checkpoints.describe(path))
print(sorted(est.checkpoints.variable_shapes(model_dir)))
"""


def test_listing_and_describing_start_no_device(saved):
    _, path, model_dir = saved
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DEVICES, str(model_dir), str(path)],
        capture_output=True,
        text=True,
        timeout=240,
        # A platform that does not exist: whatever starts devices fails.
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "none_at_all"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == textwrap.dedent(
        f"""\
        3 True
        {path}, global step 3
        variable          shape   dtype    bytes
        batch_stats/mean  [8]     float32     32
        params/bias       [8]     float32     32
        params/kernel     [8, 8]  float32    256
        3 arrays with 320 bytes of variables; 6 arrays with 584 bytes of training state
        ['batch_stats/mean', 'params/bias', 'params/kernel']
        """
    )


@pytest.mark.parametrize("devices", [2, 1])
def test_losses_go_on_on_fewer_devices_as_they_would_have(tmp_path, devices):
    def losses(folder, devices, steps):
        log = fakes.LoopLog()
        estimator = est.Estimator(
            fakes.mlp,
            tmp_path / folder,
            fakes.config(devices=devices),
            {"optimizer": optax.adam(1e-2)},
            train_batch_size=4,
        )
        estimator.train(lambda: fakes.dataset(20).shuffle(seed=0).repeat(), [log], steps)
        return log.losses

    whole = losses("whole", 4, 10)
    parts = losses("parts", 4, 5) + losses("parts", devices, 5)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
