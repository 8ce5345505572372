import io

import numpy as np
import pytest

from hooks import ImageSummaryHook
from tests.events import values_in

Image = pytest.importorskip("PIL.Image")


def written(folder):
    """Returns {(tag, step): pixels} of the images in `folder`."""
    return {
        (value.tag, step): np.asarray(Image.open(io.BytesIO(value.image.encoded_image_string)))
        for step, value in values_in(folder)
    }


@pytest.fixture
def write(make_context, make_view, tmp_path):
    """Runs a hook that is given images once."""

    def write(step, **images):
        hook = ImageSummaryHook(max_images=2, folder=tmp_path)
        hook.begin(make_context())
        try:
            hook.write(step=step, **images)
        finally:
            hook.end(make_view(0, step))

    return write


def test_the_first_images_of_each_batch_are_written(write, tmp_path):
    gray = np.linspace(0, 1, 5 * 2 * 3, dtype=np.float32).reshape(5, 2, 3)
    color = np.arange(1 * 4 * 4 * 3, dtype=np.uint8).reshape(1, 4, 4, 3)
    write(step=7, gray=gray, color=color)

    images = written(tmp_path)
    assert images.keys() == {("gray/0", 7), ("gray/1", 7), ("color/0", 7)}
    for index in range(2):
        levels = np.round(gray[index] * 255)
        np.testing.assert_array_equal(images[f"gray/{index}", 7], np.stack([levels] * 3, axis=-1))
    np.testing.assert_array_equal(images["color/0", 7], color[0])


def test_floats_outside_of_0_to_1_are_clipped(write, tmp_path):
    write(step=1, x=np.array([[[-5.0, 2.0, np.nan]]]))
    np.testing.assert_array_equal(written(tmp_path)["x/0", 1][..., 0], [[0, 255, 0]])


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 3, 3, 2), (2, 3, 3, 3, 3)])
def test_what_are_no_images_is_refused_by_name_and_shape(write, shape):
    with pytest.raises(ValueError, match=r"'digits' have the shape \[2"):
        write(step=1, digits=np.zeros(shape))


def test_another_process_than_the_chief_writes_nothing(make_context, make_view, tmp_path):
    hook = ImageSummaryHook(folder=tmp_path)
    hook.begin(make_context(is_chief=False))
    hook.write(step=1, x=np.zeros((1, 2, 2)))
    hook.end(make_view(0, 1))
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_closed_when_the_run_fails(make_context, tmp_path):
    hook = ImageSummaryHook(folder=tmp_path)
    hook.begin(make_context())
    hook.write(step=1, x=np.zeros((1, 2, 2)))
    hook.on_error(ValueError())
    assert written(tmp_path).keys() == {("x/0", 1)}
