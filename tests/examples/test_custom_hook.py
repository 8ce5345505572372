"""The lesson on hooks."""

from __future__ import annotations

from examples import custom_hook


def test_snapshots_are_of_exact_steps_and_training_stops_for_its_reason(caplog, capsys):
    caplog.set_level("INFO", "hooks")

    hook = custom_hook.main([])

    assert list(hook.snapshots) == list(range(25, 25 * len(hook.snapshots) + 1, 25))
    assert "StopAtLossHook" in caplog.text or "the mean loss of 20 steps is 0.00" in caplog.text
    assert "The last checkpoint is" in capsys.readouterr().out


def test_it_ends_at_max_steps_where_that_comes_first():
    assert list(custom_hook.main(["--max-steps", "50"]).snapshots) == [25, 50]
