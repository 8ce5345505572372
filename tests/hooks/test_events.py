import numpy as np
import pytest

from hooks import EventWriter
from tests.events import scalars_in, values_in


def test_what_is_written_is_read_back_with_its_step(tmp_path):
    with EventWriter(tmp_path / "new" / "folder") as writer:
        writer.add_scalar("loss", 2.0, 5)
        writer.add_scalar("accuracy", np.float32(0.5), 5)
        writer.add_scalar("loss", 1.0, 10)
        writer.add_scalar("accuracy", 0.25, 5)  # an older step comes late
        writer.add_scalar("once", 3)
    assert scalars_in(tmp_path / "new" / "folder") == {
        ("loss", 5): 2.0,
        ("loss", 10): 1.0,
        ("accuracy", 5): 0.25,
        ("once", 0): 3.0,
    }
    assert len(list(values_in(tmp_path / "new" / "folder"))) == 5


def test_a_text_and_a_histogram_share_the_step_of_a_scalar(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.add_scalar("loss", 2.0, 5)
        writer.add_text("note", "**bold**", 5)
        writer.add_histogram_raw("w", 0.0, 2.0, 3, 3.0, 5.0, [1.0, 2.0], [1, 2], 5)
    found = {(value.tag.partition("/")[0], step) for step, value in values_in(tmp_path)}
    assert found == {("loss", 5), ("note", 5), ("w", 5)}


def test_a_flush_shows_all_that_was_written(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.add_scalar("loss", 2.0, 5)
        assert scalars_in(tmp_path) == {}
        writer.flush()
        assert scalars_in(tmp_path) == {("loss", 5): 2.0}


def test_a_long_run_can_be_watched(tmp_path, clock):
    with EventWriter(tmp_path, flush_secs=30.0, clock=clock) as writer:
        writer.add_scalar("loss", 2.0, 5)
        clock.advance(29)
        writer.add_scalar("loss", 1.0, 10)
        assert scalars_in(tmp_path) == {}
        clock.advance(1)
        writer.add_scalar("loss", 0.5, 15)
        assert scalars_in(tmp_path) == {("loss", 5): 2.0, ("loss", 10): 1.0}


def test_two_writers_of_one_folder_have_files_of_their_own(tmp_path):
    with EventWriter(tmp_path) as first, EventWriter(tmp_path) as second:
        first.add_scalar("a", 1.0, 1)
        second.add_scalar("b", 2.0, 1)
    assert scalars_in(tmp_path) == {("a", 1): 1.0, ("b", 1): 2.0}


def test_an_error_closes_the_file_with_all_that_was_written(tmp_path):
    with pytest.raises(KeyError), EventWriter(tmp_path) as writer:
        writer.add_scalar("loss", 2.0, 5)
        raise KeyError
    assert scalars_in(tmp_path) == {("loss", 5): 2.0}
