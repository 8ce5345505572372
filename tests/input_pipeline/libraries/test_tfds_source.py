"""Examples from tfds.data_source."""

from __future__ import annotations

import numpy as np
import pytest

from input_pipeline import make_source

tfds = pytest.importorskip("tensorflow_datasets")


class Squares(tfds.core.GeneratorBasedBuilder):
    """The numbers 0 to 6 with their squares."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"n": np.int64, "square": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for n in range(7):
            yield n, {"n": n, "square": n * n}


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    builder = Squares(data_dir=str(tmp_path_factory.mktemp("tfds")), file_format="array_record")
    builder.download_and_prepare()
    return builder.as_data_source(split="train")


def test_every_example_is_read_once_as_a_dict_of_features(squares):
    stack = make_source(squares, batch_size=3).read(9)
    assert stack is not None
    real = np.arange(3) < stack.rows[:, None]
    numbers = stack.features["n"][: stack.steps][real]
    assert sorted(numbers) == list(range(7))
    np.testing.assert_array_equal(stack.features["square"][: stack.steps][real], numbers**2)


def test_a_position_is_found_at_once(squares):
    source = make_source(squares, batch_size=2)
    source.read(2)
    rest = source.read(9)
    resumed = make_source(squares, batch_size=2)
    resumed.seek({**source.position(), "examples": 4})
    again = resumed.read(9)
    assert rest is not None and again is not None and not resumed.seeks_by_reading
    np.testing.assert_array_equal(rest.features["n"][:2], again.features["n"][:2])
