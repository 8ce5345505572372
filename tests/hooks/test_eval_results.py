"""What one evaluation writes down, another process reads."""

from __future__ import annotations

import json
import math

from hooks import EvalResult, append_eval_result, eval_dir, read_eval_results


def add(folder, step, time=0.0, **values):
    append_eval_result(folder, step, values, clock=lambda: time)


def test_results_are_read_as_they_were_written(tmp_path):
    folder = eval_dir(tmp_path, "test")
    add(folder, 10, 12.5, loss=0.25, accuracy=1)

    assert folder == tmp_path / "eval_test"
    assert read_eval_results(folder) == [
        EvalResult(global_step=10, wall_time=12.5, values={"loss": 0.25, "accuracy": 1})
    ]


def test_results_are_read_in_the_order_of_their_steps_and_the_last_of_a_step_counts(tmp_path):
    add(tmp_path, 30, loss=3.0)
    add(tmp_path, 10, loss=1.0)
    add(tmp_path, 30, loss=4.0)

    assert [(r.global_step, r.values["loss"]) for r in read_eval_results(tmp_path)] == [
        (10, 1.0),
        (30, 4.0),
    ]


def test_a_folder_without_evaluations_has_no_results(tmp_path):
    assert read_eval_results(tmp_path / "eval") == []


def test_numbers_that_are_not_finite_are_kept_and_what_is_no_number_is_not(tmp_path):
    add(tmp_path, 1, loss=math.nan, worst=-math.inf, histogram=[1, 2])

    (result,) = read_eval_results(tmp_path)
    assert math.isnan(result.values["loss"])
    assert dict(result.values) == {"loss": result.values["loss"], "worst": -math.inf}


def test_a_line_that_is_being_written_is_not_read(tmp_path):
    add(tmp_path, 1, loss=1.0)
    whole = (tmp_path / "results.jsonl").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "results.jsonl").write_bytes(whole[:length])
        assert read_eval_results(tmp_path) == []


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path, caplog):
    add(tmp_path, 1, loss=1.0)
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"global_step": 2, "val')
    add(tmp_path, 3, loss=3.0)

    assert [result.global_step for result in read_eval_results(tmp_path)] == [1, 3]
    assert "results.jsonl:2 is no whole result" in caplog.text


def test_each_result_is_one_line_of_json(tmp_path):
    add(tmp_path, 1, loss=1.0)
    add(tmp_path, 2, loss=2.0)

    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["global_step"] for line in lines] == [1, 2]
