"""The lesson on input that streams."""

from __future__ import annotations

import pytest

from examples import streaming_input


@pytest.mark.parametrize("library", ["generator", "grain"])
def test_every_example_is_trained_on_once_an_epoch_though_training_stops_in_one(library):
    arguments = ["--epochs", "3"]
    if library == "grain":
        pytest.importorskip("grain")
        arguments.append("--grain")

    seen = streaming_input.main(arguments)

    assert dict(seen) == dict.fromkeys(range(streaming_input.EXAMPLES), 3)
