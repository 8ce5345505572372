"""The contests' own arithmetic, and each contestant of this environment at a tiny size."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import pytest

from benchmarks import results
from benchmarks.__main__ import CONTESTS, contest_of
from benchmarks.contest import AtLeast, AtMost, AtMostMore, Contest, Contestant, run_rounds
from benchmarks.peers import linen_models
from benchmarks.processes import Outcome
from benchmarks.tasks import CONVNET, MLP, TRANSFORMER

TINY = dataclasses.replace(MLP, width=8, examples=64, batch_size=8, loop=10)
HERE = ("by_hand", "imports", "ours")  # peers that need no other framework


def tiny_contestants() -> dict[str, Contestant]:
    """Returns a contestant of each class, with the smallest model."""
    tiny: dict[str, Contestant] = {}
    for name in CONTESTS:
        for one in contest_of(name).contestants:
            if one.peer.partition(":")[0] in HERE:
                tiny.setdefault(one.peer, dataclasses.replace(one, task=TINY))
    return tiny


@pytest.mark.slow
@pytest.mark.parametrize("contestant", tiny_contestants().values(), ids=tiny_contestants())
def test_contestants_of_this_environment_measure_something(contestant):
    peer = contestant.make()
    try:
        assert contestant.fresh or peer.measure(0.01) > 0
    finally:
        peer.close()


@pytest.mark.parametrize(
    ("task", "shape"),
    [(MLP, (32, 10)), (CONVNET, (128, 10)), (TRANSFORMER, (4, 128, 256))],
    ids=["mlp", "convnet", "transformer"],
)
def test_models_give_logits_for_each_example_or_token_and_losses_for_each_example(task, shape):
    class Network(nn.Module):
        @nn.compact
        def __call__(self, inputs, labels):
            logits = linen_models.logits(task, inputs)
            return logits, linen_models.losses(logits, labels)

    batch = [column[: task.batch_size] for column in task.data()]
    (logits, losses), _ = jax.eval_shape(Network().init_with_output, jax.random.key(0), *batch)

    assert logits.shape == shape and losses.shape == shape[:1]


@pytest.mark.slow
def test_a_contest_is_held_between_processes_and_its_results_are_written(tmp_path):
    output = tmp_path / "RESULTS.md"
    command = [sys.executable, "-m", "benchmarks", "import_time"]
    subprocess.run(
        [*command, "--rounds", "1", "--output", output], cwd=Path(__file__).parents[2], check=True
    )

    text = output.read_text()
    assert "| import jax, flax.linen, optax | " in text
    assert "jaxlib" in text


def test_each_round_measures_everyone_in_an_order_that_rotates():
    calls = []
    measures = {name: lambda name=name: calls.append(name) or len(calls) for name in "abc"}

    measured = run_rounds(measures, rounds=3)

    assert "".join(calls) == "abcbcacab"
    assert measured == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


@pytest.mark.parametrize(
    ("target", "value"),
    [
        (AtLeast(2.0, "a", ("b",)), 3.0),  # of 1/1, 6/2 and 12/4
        (AtLeast(2.0, "a", ("b", "c")), 2.0),  # c is the better of the two: 1/2, 6/3, 12/6
        (AtMost(2.0, "a", "b"), 3.0),
        (AtMostMore(2.0, "a", "b"), 4.0),  # of 0, 4 and 8
    ],
)
def test_targets_compare_within_a_round_and_take_the_median(target, value):
    assert target.value({"a": [1, 6, 12], "b": [1, 2, 4], "c": [2, 3, 6]}) == value


def test_targets_say_whether_they_are_met():
    assert AtLeast(2.0, "a", ("b",)).met(2.0) and not AtLeast(2.0, "a", ("b",)).met(1.9)
    assert AtMost(2.0, "a", "b").met(2.0) and not AtMost(2.0, "a", "b").met(2.1)
    assert AtMostMore(2.0, "a", "b").met(2.0) and not AtMostMore(2.0, "a", "b").met(2.1)


def contest(**changes) -> Contest:
    contestants = [Contestant(name=name, peer="", task=MLP) for name in ("us", "them", "others")]
    values = {
        "title": "A race",
        "about": "Who is faster.",
        "unit": "steps/s",
        "subject": "us",
        "contestants": contestants,
        "targets": [AtLeast(2.0, "us", ("them",)), AtLeast(1.0, "us", ("others",))],
    }
    return Contest(**(values | changes))


def test_the_table_shows_medians_ranges_ratios_targets_and_who_is_absent():
    outcome = Outcome()
    outcome.measured = {"us": [300.0, 100.0, 1200.0], "them": [100.0, 100.0, 400.0]}
    outcome.absent = {"others": "keras is not installed"}

    lines = results.section(contest(), outcome).splitlines()

    assert "| us | 300 | 100 - 1,200 |  |" in lines
    assert "| them | 100 | 100 - 400 | 3.00 |" in lines
    assert "| others | | keras is not installed | |" in lines
    assert "| us: at least 2 of them | 3.00 | yes |" in lines
    assert "| us: at least 1 of others | | not measured |" in lines


@pytest.mark.parametrize(
    "changes", [{"subject": "nobody"}, {"targets": [AtLeast(1.0, "us", ("nobody",))]}]
)
def test_a_contest_refuses_names_of_nobody(changes):
    with pytest.raises(ValueError, match="nobody"):
        contest(**changes)
