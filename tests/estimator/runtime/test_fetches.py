from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import pytest

from estimator.runtime.fetches import Fetches


class Layer(NamedTuple):
    kernel: Any
    bias: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    step: Any


OUTPUTS = {
    "loss": 1,
    "metrics": {"accuracy": 2, "top/5": 3},
    "layers": [Layer(4, 5), Layer(6, 7)],
    "state": State(8),
    "nothing": None,
}


@pytest.mark.parametrize(
    ("fetches", "picked"),
    [
        ("loss", 1),
        ("metrics", {"accuracy": 2, "top/5": 3}),
        ("metrics/accuracy", 2),
        ("metrics/top/5", 3),
        ("layers/1", Layer(6, 7)),
        ("layers/0/bias", 5),
        ("state/step", 8),
        ("nothing", None),
        (("loss", "layers/1/kernel"), (1, 6)),
        ({"a": ["loss"], "b": "state"}, {"a": [1], "b": State(8)}),
    ],
)
def test_paths_pick_outputs_in_the_structure_of_the_fetches(fetches, picked):
    assert Fetches(fetches).pick(OUTPUTS) == picked


def test_outputs_of_a_tuple_are_picked_by_position():
    assert Fetches("1").pick((10, 11)) == 11


@pytest.mark.parametrize("path", ["los", "loss/x", "metrics/top", "layers/2", ""])
def test_a_path_to_nowhere_lists_the_outputs(path):
    with pytest.raises(ValueError, match=rf"no output '{path}'.*'metrics/accuracy'"):
        Fetches(path).pick(OUTPUTS)


def test_what_is_no_path_is_refused():
    with pytest.raises(TypeError, match="3 is of <class 'int'>"):
        Fetches(("loss", 3))


def test_no_path_at_all_is_refused():
    with pytest.raises(ValueError, match="names no output"):
        Fetches(())


def test_equal_fetches_have_equal_keys():
    assert Fetches(["loss"]).key == Fetches(["loss"]).key
    assert Fetches(["loss"]).key != Fetches(("loss",)).key
    assert Fetches("loss").key != Fetches("state").key
