import pytest

from hooks import HyperparameterSummaryHook


def test_params_are_written_as_a_table_when_the_run_begins(writer, make_context):
    params = {"hidden": 512, "optimizer": {"name": "adam", "learning_rate": 1e-3}}
    hook = HyperparameterSummaryHook(writer, params)
    assert writer.texts == []
    hook.begin(make_context(step=7))
    assert writer.texts == [
        (
            "hyperparameters",
            7,
            "| name | value |\n"
            "| --- | --- |\n"
            "| hidden | 512 |\n"
            "| optimizer.name | adam |\n"
            "| optimizer.learning_rate | 0.001 |",
        )
    ]


def test_a_value_cannot_break_the_table(writer, make_context):
    HyperparameterSummaryHook(writer, {"note": "a|b\nc"}).begin(make_context())
    assert writer.texts[0][2].splitlines()[2:] == ["| note | a\\|b c |"]


def test_another_process_than_the_chief_writes_nothing(writer, make_context):
    HyperparameterSummaryHook(writer, {"hidden": 512}).begin(make_context(is_chief=False))
    assert writer.texts == []


def test_tensorboardx_takes_the_table(make_context, tmp_path):
    tensorboardX = pytest.importorskip("tensorboardX")
    with tensorboardX.SummaryWriter(str(tmp_path)) as writer:
        HyperparameterSummaryHook(writer, {"hidden": 512}).begin(make_context())
    (events,) = tmp_path.iterdir()
    assert b"| hidden | 512 |" in events.read_bytes()


def test_params_that_are_no_dict_are_refused():
    with pytest.raises(TypeError, match=r"got list.*dataclasses\.asdict"):
        HyperparameterSummaryHook(None, [1])  # pyright: ignore[reportArgumentType]
