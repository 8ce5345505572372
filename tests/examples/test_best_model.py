"""The lesson on stopping early and exporting the best."""

from __future__ import annotations

import pytest

from examples import best_model


@pytest.mark.slow
def test_it_stops_behind_the_best_and_serves_it(capsys):
    result = best_model.main([])

    out = capsys.readouterr().out
    losses = {
        int(line.split()[1].rstrip(":")): float(line.split()[-1])
        for line in out.splitlines()
        if line.startswith("step")
    }
    best = min(losses, key=losses.__getitem__)
    assert max(losses) == result.metrics["global_step"] < 2000
    assert f"The best was that of step {best}: {result.exports['best']}" in out


def test_it_runs_to_the_end_where_that_comes_first(capsys):
    result = best_model.main(["--max-steps", "30"])

    assert result.metrics["global_step"] == 30
    assert "Stopped at step 30 of 30" in capsys.readouterr().out
