import numpy as np
import pytest

from hooks import checks


def test_a_numpy_integer_is_an_int():
    assert type(checks.positive_int("steps", np.int64(1))) is int


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_what_is_no_positive_int_is_refused_by_name(value, error):
    with pytest.raises(error, match=f"^steps must be a positive int, got {value}[.]$"):
        checks.positive_int("steps", value)


@pytest.mark.parametrize("value", [100, None, "10s"])
def test_every_says_how_to_write_a_period(value):
    with pytest.raises(TypeError, match=r"EverySteps\(100\), or every=EverySecs\(60\)"):
        checks.every(value)
