"""The lesson on a language model that is split over the devices."""

from __future__ import annotations

import re

import numpy as np
import pytest

from examples import transformer


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fsdp", "tensor"])
def test_it_trains_split_and_the_same_checkpoint_serves_on_one_device(capsys, layout):
    arguments = ["--steps", "30", "--layout", layout, "--microbatches", "2"]

    metrics = transformer.main(arguments)

    out = capsys.readouterr().out
    assert metrics["global_step"] == 30
    assert metrics["bits_per_byte"] < 6  # 8 without any training
    assert re.search(r"params/block_0/up/kernel \[64, 256\]: .*'fsdp'.*, 8,192 bytes", out)
    split, whole = re.findall(r"([\d.]+) bits per byte", out)
    assert float(split) == pytest.approx(float(whole), abs=0.002)


def test_no_text_is_both_trained_on_and_held_out():
    (texts, following), (held_out, _) = transformer.read_texts(length=64)

    np.testing.assert_array_equal(texts[:, 1:], following[:, :-1])
    train = {text.tobytes() for text in texts}
    assert len(held_out) == transformer.HELD_OUT
    assert not [text for text in held_out if text.tobytes() in train]
