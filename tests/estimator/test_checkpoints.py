"""Checkpoints: whole or absent, exactly of their step, and never of another model."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import estimator as est
from tests import fakes
from tests.fakes import config, dataset, mlp, numbered


def make(model_dir: Path, model_fn: Any = mlp, **settings: Any) -> est.Estimator:
    return est.Estimator(
        model_fn,
        model_dir,
        config(**settings),
        {"optimizer": optax.adam(0.01)} if model_fn is mlp else None,
        train_batch_size=2,
        eval_batch_size=2,
    )


def endless():
    return dataset(20).repeat()


def folder_of(estimator: est.Estimator) -> Path:
    return Path(estimator.model_dir) / "checkpoints"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def counting(features, labels, mode):
    """A model_fn whose weights all equal the number of updates."""
    weights = nn.Dense(64, use_bias=False, kernel_init=nn.initializers.zeros)
    weights(jnp.zeros((1, 1024)))
    total = weights.variables["params"]["kernel"].sum()
    return est.EstimatorSpec(
        mode, loss=-total + 0.0 * features["x"].sum(), optimizer=optax.sgd(1.0)
    )


def test_a_checkpoint_written_while_training_goes_on_holds_the_values_of_its_step(tmp_path):
    estimator = make(
        tmp_path,
        counting,
        iterations_per_loop=1,
        save_checkpoints_steps=2,
        keep_checkpoint_max=None,
    )
    estimator.train(endless, max_steps=40)
    steps = fakes.saved_steps(estimator)
    assert steps == list(range(2, 41, 2))
    for step in steps:
        # Each older one is the newest once those after it are gone.
        for newer in steps[steps.index(step) + 1 :]:
            if (folder_of(estimator) / str(newer)).exists():
                (folder_of(estimator) / str(newer)).rename(tmp_path / str(newer))
        weights = estimator.get_variable_value("params/Dense_0/kernel")
        np.testing.assert_array_equal(weights, np.full((1024, 64), step, np.float32))
        for newer in steps[steps.index(step) + 1 :]:
            (tmp_path / str(newer)).rename(folder_of(estimator) / str(newer))


def test_the_newest_checkpoints_are_kept(tmp_path):
    estimator = make(tmp_path, save_checkpoints_steps=2, keep_checkpoint_max=3)
    estimator.train(endless, max_steps=13)
    assert fakes.saved_steps(estimator) == [10, 12, 13]


def test_all_checkpoints_are_kept_if_there_is_no_maximum(tmp_path):
    estimator = make(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=None)
    estimator.train(endless, max_steps=8)
    assert fakes.saved_steps(estimator) == list(range(1, 9))


def test_saving_listeners_are_asked_before_and_told_after_each_save(tmp_path):
    events: list[Any] = []

    class Listener:
        def before_save(self, view):
            events.append(("before", view.step))
            return "not this one" if view.step == 4 else None

        def after_save(self, step, path):
            events.append(("after", step, Path(path).name))

    estimator = make(tmp_path, save_checkpoints_steps=2, iterations_per_loop=3)
    estimator.train(endless, max_steps=5, saving_listeners=[Listener()])
    assert events == [
        ("before", 2),
        ("after", 2, "2"),
        ("before", 4),
        ("before", 5),
        ("after", 5, "5"),
    ]
    assert fakes.saved_steps(estimator) == [2, 5]


def test_what_is_not_a_checkpoint_does_not_disturb_those_that_are(tmp_path):
    estimator = make(tmp_path)
    estimator.train(endless, max_steps=3)
    (folder_of(estimator) / "notes.txt").write_text("mine")
    (folder_of(estimator) / "best").mkdir()
    assert fakes.latest_step(estimator) == 3
    estimator.train(endless, max_steps=5)
    assert fakes.latest_step(estimator) == 5
    assert (folder_of(estimator) / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written_any_more_is_an_error_and_the_last_one_survives(
    tmp_path, no_new_threads
):
    estimator = make(tmp_path, save_checkpoints_steps=10, iterations_per_loop=1)
    folder, aside = folder_of(estimator), tmp_path / "aside"
    estimator.train(endless, max_steps=10)

    def replace(view):
        if view.step == 15:
            folder.rename(aside)
            folder.write_text("a file is no folder, even for root")

    with pytest.raises(est.CheckpointError, match="could not be written") as caught:
        estimator.train(endless, hooks=[est.hooks.LambdaHook(after_loop=replace)], max_steps=30)
    assert caught.value.__cause__ is not None
    folder.unlink()
    aside.rename(folder)
    assert fakes.saved_steps(estimator) == [10]
    estimator.train(endless, max_steps=30)
    assert fakes.latest_step(estimator) == 30


PREAMBLE = """
import os, signal, sys, time
import jax
import estimator as est
from tests import fakes

model_dir = sys.argv[1]
rename = os.rename

def make(**settings):
    return est.Estimator(fakes.mlp, model_dir, fakes.config(**settings), train_batch_size=2)

def train(estimator, **arguments):
    estimator.train(lambda: fakes.dataset(20).repeat(), **arguments)
"""


def start(script: str, model_dir: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a Python process that runs `script` after PREAMBLE."""
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), str(model_dir), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(fakes.__file__).parent.parent)},
    )


def test_a_full_disk_is_an_error_and_the_last_checkpoint_survives(tmp_path):
    process = start(
        """
        import resource
        estimator = make(save_checkpoints_steps=10, iterations_per_loop=1)
        train(estimator, max_steps=10)

        def fill(view):
            if view.step == 15:
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

        try:
            train(estimator, hooks=[est.hooks.LambdaHook(after_loop=fill)], max_steps=30)
        except est.CheckpointError as error:
            print(error, flush=True)
            os._exit(3)
        """,
        tmp_path,
    )
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 3, errors
    assert "newest whole one is 10" in output
    estimator = est.Estimator(mlp, tmp_path, config(), train_batch_size=2)
    assert fakes.latest_step(estimator) == 10
    estimator.train(endless, steps=2)
    assert fakes.latest_step(estimator) == 12


def test_the_last_checkpoint_is_on_disk_when_train_returns(tmp_path):
    process = start(
        """
        def slow(source, target, **options):
            if os.fspath(target).endswith("checkpoints/17"):
                time.sleep(2)
            rename(source, target, **options)

        os.rename = slow
        train(make(), max_steps=17)
        os._exit(0)
        """,
        tmp_path,
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    estimator = est.Estimator(mlp, tmp_path, config(), train_batch_size=2)
    assert fakes.latest_step(estimator) == 17
    reference = est.Estimator(mlp, tmp_path / "reference", config(), train_batch_size=2)
    reference.train(endless, max_steps=17)
    fakes.assert_equal(fakes.saved_variables(estimator), fakes.saved_variables(reference))


def test_a_write_that_was_killed_leaves_the_last_checkpoint_and_is_cleaned_up(
    tmp_path, monkeypatch
):
    process = start(
        """
        def stuck(source, target, **options):
            if os.fspath(target).endswith("checkpoints/20"):
                print("committing", flush=True)
                time.sleep(600)
            rename(source, target, **options)

        os.rename = stuck
        train(make(save_checkpoints_steps=10, keep_checkpoint_max=1), max_steps=40)
        """,
        tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "committing\n", process.stderr and process.stderr.read()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)

    folder = tmp_path / "checkpoints"
    (leftover,) = set(names_in(folder)) - {"10"}
    assert "tmp" in leftover
    estimator = est.Estimator(
        mlp,
        tmp_path,
        config(save_checkpoints_steps=10, keep_checkpoint_max=1),
        train_batch_size=2,
    )
    assert fakes.latest_step(estimator) == 10

    rename, at_commit = os.rename, []

    def spy(source: Any, target: Any, **options: Any) -> None:
        if os.fspath(target).endswith("checkpoints/20"):
            at_commit.append(names_in(folder))
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", spy)
    log = fakes.LoopLog()
    began: list[int] = []
    hook = est.hooks.LambdaHook(begin=lambda context: began.append(context.step))
    estimator.train(endless, hooks=[log, hook], max_steps=20)
    assert began == [10]
    assert sum(log.lengths) == 10
    (names,) = at_commit
    assert "10" in names
    assert names_in(folder) == ["20"]


def classifier(classes: int) -> Any:
    def model_fn(features, labels, mode):
        hidden = nn.Dense(4)(features["x"])
        logits = nn.Dense(classes)(hidden)
        if mode == est.ModeKeys.PREDICT:
            return est.EstimatorSpec(mode, predictions=logits)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, features["id"] % 10)
        return est.EstimatorSpec(mode, loss=loss, optimizer=optax.sgd(0.1))

    return model_fn


def test_another_number_of_classes_is_refused_with_both_shapes(tmp_path, compilations):
    make(tmp_path, classifier(10)).train(lambda: numbered(2))
    before = compilations.count
    for call in ("train", "evaluate"):
        with pytest.raises(est.CheckpointMismatchError) as caught:
            getattr(make(tmp_path, classifier(11)), call)(lambda: numbered(2))
        for words in (
            "params/Dense_1/kernel",
            "[4, 10]",
            "[4, 11]",
            "use a new model_dir",
            "warm_start_from",
            str(tmp_path),
        ):
            assert words in str(caught.value)
    assert compilations.count == before
    assert fakes.latest_step(make(tmp_path, classifier(10))) == 1


def test_another_optimizer_is_refused_by_the_names_of_its_state(tmp_path):
    make(tmp_path).train(lambda: numbered(2))
    other = est.Estimator(mlp, tmp_path, config(), train_batch_size=2)
    with pytest.raises(est.CheckpointMismatchError, match=r"optimizer state.*mu/Dense_0/bias"):
        other.train(lambda: numbered(2))


def drop_layer(estimator: est.Estimator) -> None:
    """Rewrites the variables of the newest checkpoint without Dense_1."""
    import orbax.checkpoint as ocp

    kept = {
        name.removeprefix("params/Dense_0/"): value
        for name, value in fakes.saved_variables(estimator).items()
        if "Dense_1" not in name
    }
    folder = Path(estimator.latest_checkpoint() or "") / "variables"
    shutil.rmtree(folder)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(folder, {"params": {"Dense_0": kept}})


@pytest.mark.parametrize("call", ["train", "evaluate"])
def test_a_layer_that_is_missing_on_disk_is_named_and_not_filled_in(tmp_path, call):
    estimator = make(tmp_path)
    estimator.train(lambda: numbered(2))
    drop_layer(estimator)
    with pytest.raises(est.CheckpointMismatchError, match="lack params/Dense_1/bias") as caught:
        getattr(estimator, call)(lambda: numbered(2))
    for words in ("params/Dense_1/kernel", "use a new model_dir", "warm_start_from", str(tmp_path)):
        assert words in str(caught.value)


LOST = ["variables/d", "variables/manifest.ocdbt", "training", "run"]


def test_data_that_is_missing_on_disk_is_an_error_and_never_zeros(tmp_path):
    # In a process of its own, as the readers that fail leave warnings of theirs behind.
    process = start(
        """
        import pathlib, shutil

        train(make(), max_steps=2)
        whole = pathlib.Path(model_dir)
        for number, lost in enumerate(sys.argv[2:]):
            model_dir = str(whole.with_name(f"broken{number}"))
            shutil.copytree(whole, model_dir)
            path = pathlib.Path(model_dir, "checkpoints", "2", lost)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            try:
                train(make(), max_steps=3)
                print(lost, "was not missed", flush=True)
            except (est.CheckpointError, OSError, ValueError) as error:
                print(lost, model_dir in str(error), flush=True)
        os._exit(0)
        """,
        tmp_path / "whole",
        *LOST,
    )
    output, errors = process.communicate(timeout=120)
    assert output.splitlines() == [f"{lost} True" for lost in LOST], errors


def test_a_wrong_checkpoint_path_is_not_found(tmp_path):
    estimator = make(tmp_path)
    estimator.train(lambda: numbered(2))
    with pytest.raises(FileNotFoundError, match="nope"):
        estimator.evaluate(lambda: numbered(2), checkpoint_path="nope")


def test_variables_are_read_by_name(tmp_path):
    estimator = make(tmp_path)
    with pytest.raises(FileNotFoundError, match="train"):
        estimator.get_variable_names()
    assert estimator.latest_checkpoint() is None
    state = fakes.final_state(estimator, lambda: numbered(20))
    assert estimator.get_variable_names() == [
        "params/Dense_0/bias",
        "params/Dense_0/kernel",
        "params/Dense_1/bias",
        "params/Dense_1/kernel",
    ]
    for name, value in fakes.saved_variables(estimator).items():
        assert type(value) is np.ndarray
        np.testing.assert_array_equal(value, state[name])
    with pytest.raises(KeyError, match="params/Dense_9"):
        estimator.get_variable_value("params/Dense_9")


def test_a_checkpoint_is_due_after_seconds_too(tmp_path):
    estimator = make(
        tmp_path, save_checkpoints_secs=1e-9, iterations_per_loop=2, keep_checkpoint_max=None
    )
    estimator.train(endless, max_steps=6)
    assert fakes.saved_steps(estimator) == [2, 4, 6]


@pytest.mark.parametrize("argument", ["steps", "max_steps"])
def test_a_number_of_steps_may_be_numpys(tmp_path, argument):
    estimator = make(tmp_path)
    count: Any = np.int64(3)
    estimator.train(endless, **{argument: count})
    assert fakes.latest_step(estimator) == 3


def test_counts_in_the_config_may_be_numpys(tmp_path):
    estimator = make(
        tmp_path,
        iterations_per_loop=np.int64(2),
        save_checkpoints_steps=np.int64(2),
        keep_checkpoint_max=np.int64(2),
        log_step_count_steps=np.int64(2),
        save_summary_steps=np.int64(2),
        host_call_every_n_steps=np.int64(2),
        infeed_buffer_bytes=np.int64(10**6),
    )
    estimator.train(endless, max_steps=5)
    assert fakes.saved_steps(estimator) == [4, 5]


def test_training_state_is_given_over_to_each_dispatch(tmp_path):
    """The state that goes into the loop program does not survive it: no second copy."""
    from estimator.batches import Batches
    from estimator.mesh import Placement
    from estimator.model import Model
    from estimator.programs import Programs

    settings = config()
    placement = Placement.make(settings.devices)
    model = Model(mlp, params={}, config=settings, num_replicas=1)
    programs = Programs(model, placement, settings)
    source = dataset(4).source(2)
    state = programs.initializer(est.ModeKeys.TRAIN, source.element_spec())(0)
    stack = source.read(2)
    assert stack is not None
    batches = jax.device_put(Batches(stack.features, stack.labels, None), placement.stacked_batches)
    new_state, _ = programs.train()(state, (), batches, 0, 2, global_step=0, steps_left=2)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert int(new_state.step) == 2


def test_what_hooks_are_given_as_state_outlives_the_next_loops(tmp_path):
    kept: list[Any] = []
    estimator = make(tmp_path, counting, iterations_per_loop=1)
    hook = est.hooks.LambdaHook(after_loop=lambda view: kept.append(view.state()))
    estimator.train(endless, hooks=[hook], max_steps=5)
    for step, state in enumerate(kept, start=1):
        assert int(state.step) == step
        assert np.unique(state.params["Dense_0"]["kernel"]).tolist() == [step]


def test_a_resume_is_logged_with_the_checkpoint(tmp_path, caplog):
    make(tmp_path).train(endless, steps=3)
    with caplog.at_level(logging.INFO, logger="estimator"):
        make(tmp_path).train(endless, steps=1)
    assert str(tmp_path / "checkpoints" / "3") in caplog.text


@pytest.mark.parametrize("damage", ["variables", "training", "run", "all files empty"])
def test_a_damaged_checkpoint_is_an_error_that_names_it_and_the_way_out(tmp_path, damage):
    estimator = make(tmp_path, save_checkpoints_steps=2)
    estimator.train(endless, max_steps=4)
    newest = folder_of(estimator) / "4"
    if damage == "all files empty":
        for path in newest.rglob("*"):
            if path.is_file():
                path.write_bytes(b"")
    else:
        shutil.rmtree(newest / damage)

    with pytest.raises(est.CheckpointError, match=f"{newest} is damaged.*Remove that folder"):
        estimator.train(endless, max_steps=6)
    shutil.rmtree(newest)
    estimator.train(endless, max_steps=6)
    assert fakes.saved_steps(estimator) == [2, 4, 6]


def test_a_saving_listener_can_evaluate_what_was_saved(tmp_path):
    steps = []

    class Evaluates:
        def before_save(self, view):
            return None

        def after_save(self, step, path):
            steps.append((step, estimator.evaluate(lambda: numbered(4))["global_step"]))

    estimator = make(tmp_path, save_checkpoints_steps=2)
    estimator.train(endless, max_steps=4, saving_listeners=[Evaluates()])
    assert steps == [(2, 2), (4, 4)]
