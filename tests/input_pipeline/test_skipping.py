"""The line that says how far a reader has skipped."""

from __future__ import annotations

from input_pipeline.skipping import SkipReport


def test_a_line_is_logged_every_ten_seconds(caplog):
    now = 0.0
    report = SkipReport(50, "batches", clock=lambda: now)
    with caplog.at_level("INFO"):
        for count in range(1, 31):
            now += 1
            report.skipped(count)
    assert caplog.messages == [
        "Skipped 11 of 50 batches of the input.",
        "Skipped 22 of 50 batches of the input.",
    ]
