"""How fast an input_fn is."""

from __future__ import annotations

import numpy as np
import pytest

from input_pipeline import benchmark, make_source

X = np.zeros((8, 3), np.float32)


def input_fn(params):
    assert params["context"].batch_size == params["batch_size"]
    return {"x": X}


def test_a_rate_counts_what_was_read_after_the_first_stack():
    times = iter([0.0, 2.0, 3.0, 4.0, 5.0])
    source = make_source(X, batch_size=3)
    rate = benchmark.measure(source, secs=99, stack=1, clock=lambda: next(times))
    assert rate == benchmark.Rate(
        batches=2, examples=5, bytes=2 * 3 * 3 * 4, secs=2.0, first_secs=2.0
    )
    assert str(rate).startswith("1.0 batches/s, 2.5 examples/s")


def test_measuring_ends_when_the_time_is_up():
    times = iter([0.0, 0.0, 1.0, 2.0, 3.0])
    source = make_source(lambda: iter([X[:2]] * 100), batch_size=2)
    rate = benchmark.measure(source, secs=2, stack=1, clock=lambda: next(times))
    assert rate.batches == 2


def test_an_empty_input_is_an_error():
    with pytest.raises(ValueError, match="input_fn produced no batches"):
        benchmark.measure(make_source(X[:0], batch_size=2), secs=1, stack=1)


def test_the_command_names_the_leaves_and_the_rate(capsys, monkeypatch, tmp_path):
    (tmp_path / "measured_input.py").write_text(
        "import numpy as np\ndef input_fn(): return [np.zeros((2, 5), np.float32)] * 30\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    benchmark.main(["measured_input:input_fn", "--batch_size", "2", "--secs", "0.01"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "features: float32 [2, 5], 40 bytes"
    assert "batches/s" in lines[-1]


def test_params_are_given_to_an_input_fn_that_asks_for_them():
    assert benchmark.call(input_fn, 4) == {"x": X}


def test_a_name_without_a_function_is_an_error():
    with pytest.raises(ValueError, match="Expected module:input_fn, got 'json'"):
        benchmark.load("json")
