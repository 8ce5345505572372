"""The digits example, as a user runs it and from inside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import digits

SCRIPT = Path(digits.__file__)


@pytest.mark.slow
def test_the_lesson_reaches_the_promised_accuracy_on_digits_never_trained_on(tmp_path, capsys):
    metrics = digits.main(["--model-dir", str(tmp_path)])

    assert metrics["accuracy"] >= 0.97
    assert metrics["global_step"] == 1500
    out = capsys.readouterr().out
    assert "Half way, at step 750:" in out
    assert "Trained, at step 1500:" in out
    assert f"held-out accuracy {metrics['accuracy']:.4f}" in out
    assert "it predicts the same" in out


@pytest.mark.slow
def test_running_it_again_with_more_steps_goes_on_from_the_checkpoint(tmp_path, capsys):
    digits.main(["--model-dir", str(tmp_path), "--steps", "4"])
    assert "Half way, at step 2:" in capsys.readouterr().out

    metrics = digits.main(["--model-dir", str(tmp_path), "--steps", "8"])
    # Half of 8 steps are there already.
    assert "Half way, at step 4:" in capsys.readouterr().out
    assert metrics["global_step"] == 8


def test_no_digit_is_both_trained_on_and_held_out():
    (train_images, train_labels), (test_images, test_labels) = digits.read_digits()

    assert len(train_labels) + len(test_labels) == 1797
    train = {image.tobytes() for image in train_images}
    assert len(train) == len(train_images)
    assert not train & {image.tobytes() for image in test_images}


def test_the_script_tells_its_story_in_plain_lines_where_there_is_no_terminal():
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--steps", "10"],
        env=env,
        cwd=SCRIPT.parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "Training on 1437 digits; 360 are held out."
    assert done.stdout.splitlines()[-1].endswith("it predicts the same.")
    assert "step 10: loss = " in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "Warning" not in done.stderr
