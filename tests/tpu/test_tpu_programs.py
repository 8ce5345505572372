"""The loops compile for TPUs, stay on them, and say to each other what they must and no more.

No TPU is needed: libtpu compiles for devices that it only has a description of.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("libtpu", reason="libtpu, the compiler for TPUs, is not installed: .[tpu]")
pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
SETTINGS = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else another process that compiles is in the way
    "JAX_PLATFORMS": "cpu",  # nothing looks for TPUs
    "TPU_SKIP_MDS_QUERY": "1",  # nor asks the cloud about them
    # These keep it from guessing aloud where it is, and from leaving logs behind.
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def _of_transformer(width: int, length: int) -> int:
    """Returns the parameters of one with two blocks."""
    block = (
        2 * 2 * width  # layer norms
        + 4 * (width * width + width)  # attention
        + (4 * width * width + 4 * width)
        + (4 * width * width + width)
    )
    return (256 + length) * width + 2 * block + 2 * width + (width * 256 + 256)


PARAMETERS = {
    "digits": (64 * 256 + 256) + (256 * 256 + 256) + (256 * 10 + 10),
    "transformer": _of_transformer(256, 128),
}
SCALARS = {"digits": 2, "transformer": 3}  # the loss and the metrics of each model
COLLECTIVES = "|".join(
    [
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "recv",
        "reduce-scatter",
        "send",
    ]
)


@pytest.fixture(scope="module", params=PARAMETERS)
def model(request) -> str:
    return request.param


@functools.cache
def compiled(case: str) -> dict[str, dict[str, Any]]:
    """Returns what the compiler made of the loops of a case, by name."""
    settings_of_others = ("JAX_", "LIBTPU_", "TPU_", "XLA_")
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(settings_of_others)
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.tpu.compile_loops", case],
        env=env | SETTINGS,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def loops(model) -> dict[str, dict[str, Any]]:
    return compiled(model)


def computations(hlo_text: str) -> dict[str, str]:
    """Returns the text of each computation by its name; that of the whole is under ENTRY."""
    blocks = re.findall(
        r"^(ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", hlo_text, re.MULTILINE | re.DOTALL
    )
    return {"ENTRY" if entry else name: body for entry, name, body in blocks}


def with_callees(name: str, blocks: dict[str, str]) -> str:
    """Returns the text of a computation and of all that it calls."""
    found, to_visit = set(), {name}
    while to_visit:
        found |= to_visit
        named = {word for one in to_visit for word in re.findall(r"%([\w.-]+)", blocks[one])}
        to_visit = (named & blocks.keys()) - found
    return "".join(blocks[one] for one in sorted(found))


class Loop(NamedTuple):
    """A loop on the device: the text of what asks whether to go on, and of one round."""

    condition: str
    body: str


def loops_in(hlo_text: str) -> list[Loop]:
    """Returns the loops of a program, also those inside of others."""
    blocks = computations(hlo_text)
    found = re.findall(r" while\(.*?condition=%?([\w.-]+), body=%?([\w.-]+)", hlo_text)
    return [Loop(*(with_callees(name, blocks) for name in names)) for names in found]


def collectives(text: str) -> list[tuple[str, int]]:
    """Returns for each array that goes between the devices how, and its number of elements."""
    operations = re.findall(rf"= (.+?) ({COLLECTIVES})(?:-start)?\(", text)
    return [
        (how, math.prod(int(size) for size in shape.split(",") if size))
        for arrays, how in operations
        for shape in re.findall(r"\b[a-z]\w*\[([\d,]*)\]", arrays)
    ]


def test_each_loop_is_one_program_for_any_number_of_steps(loops):
    for loop in loops.values():
        (found,) = loops_in(loop["hlo_text"])
        assert "compare(" in found.condition
        assert "constant(" not in found.condition  # its end is an argument


def test_all_that_a_loop_returns_takes_the_memory_of_what_it_was_given(model, loops):
    for loop in loops.values():
        header = loop["hlo_text"].split("\n", 1)[0]
        (returned,) = re.findall(r"->(.*?), \w+=", header)
        arrays = len(re.findall(r"\b[a-z]\w*\[", returned))
        assert arrays > loop["carried_arrays"]  # and what leaves it every step
        assert len(re.findall("(?:may|must)-alias", header)) == arrays
    # Each parameter is there with the two moments that Adam keeps of it, in float32.
    assert loops["train"]["aliased_bytes"] >= 3 * 4 * PARAMETERS[model]


def test_training_adds_up_each_gradient_once_a_step_and_moves_nothing_else(model, loops):
    hlo_text = loops["train"]["hlo_text"]
    (loop,) = loops_in(hlo_text)
    moved = collectives(loop.body)
    assert {how for how, _ in moved} == {"all-reduce"}
    assert sum(size for _, size in moved) == PARAMETERS[model] + SCALARS[model]
    assert collectives(hlo_text) == moved  # none outside the loop


def test_evaluation_adds_up_its_numbers_and_moves_nothing_else(model, loops):
    numbers = SCALARS[model] + 1  # and of how many examples they are
    assert collectives(loops["evaluate"]["hlo_text"]) == [("all-reduce", 1)] * numbers


def test_in_prediction_no_device_waits_for_another(loops):
    assert collectives(loops["predict"]["hlo_text"]) == []


LARGE = _of_transformer(1024, 256)
LARGEST_ARRAY = 1024 * 4096  # the kernels to and from the hidden units


@pytest.mark.parametrize("layout", ["fsdp", "tensor"])
def test_sixteen_devices_share_one_copy_of_the_state_and_gather_it_array_by_array(layout):
    loop = compiled(f"large {layout}")["train"]

    whole = 3 * 4 * LARGE  # each parameter and its two moments, in float32
    assert sum(loop["carried_elements"]) * 4 == pytest.approx(whole, rel=1e-6)
    assert loop["carried_bytes"] < whole / 14  # what is smaller than it is worth stays whole
    assert loop["aliased_bytes"] < whole / 10
    # With all that a step needs besides, a device holds less than one copy of the state.
    assert loop["peak_bytes"] < whole / 2

    moved = collectives(loop["hlo_text"])

    def largest(how: str) -> int:
        return max((size for one, size in moved if one == how), default=0)

    # Never all arrays at once, nor a batch; a pair of cores needs half of each kernel.
    assert largest("all-gather") == LARGEST_ARRAY // (2 if layout == "tensor" else 1)
    # Gradients go straight into the parts: each is passed around, added to, and left where it is
    # kept, or there is an operation for that. None is summed up whole, but small ones; and what
    # a pair shares of its rows.
    assert largest("collective-permute") == LARGEST_ARRAY // 16 or largest("reduce-scatter")
    rows_of_pair = 32 // 8 * 256 * 1024
    assert largest("all-reduce") <= (rows_of_pair if layout == "tensor" else 256 * 1024)


@pytest.mark.parametrize("cut", ["rows", "squares"])
def test_cores_that_share_an_image_exchange_the_borders_of_their_parts(cut):
    moved = collectives(compiled(cut)["train"]["hlo_text"])

    hows = {how for how, _ in moved}
    assert hows == {"all-reduce", "collective-permute"}
    border = max(size for how, size in moved if how == "collective-permute")
    assert border <= 16 * 64 * 32  # a line of each image, in all channels
