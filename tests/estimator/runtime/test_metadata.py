from __future__ import annotations

import numpy as np
import pytest

from estimator.runtime import RunMetadata
from estimator.runtime.metadata import op_secs

MATRIX = np.ones((64, 64), np.float32)


def product(x):
    return x @ x


def test_metadata_tells_what_the_program_costs(session):
    metadata = session.make_callable(product, (MATRIX,)).metadata()
    assert isinstance(metadata, RunMetadata)
    assert metadata.bytes_accessed is not None and metadata.peak_memory_bytes is not None
    assert metadata.compile_secs > 0
    assert metadata.flops == 2 * 64**3
    assert metadata.bytes_accessed >= 2 * MATRIX.nbytes  # reads one, writes one
    assert metadata.peak_memory_bytes >= 2 * MATRIX.nbytes
    assert metadata.aliased_bytes == 0
    assert "HloModule jit_product" in str(metadata.hlo_text)
    assert metadata.op_secs is None


def test_metadata_tells_how_much_donated_memory_is_used_again(session):
    made = session.make_callable(lambda x, y: x + y, (MATRIX, MATRIX), donate=0)
    assert made.metadata().aliased_bytes == MATRIX.nbytes


def test_a_run_with_metadata_returns_outputs_and_cost(session):
    result = session.run_with_metadata(product, (MATRIX,), timeout_secs=60)
    np.testing.assert_array_equal(result.outputs, MATRIX @ MATRIX)
    assert result.metadata == session.make_callable(product, (MATRIX,)).metadata()
    assert session.counters().runs == 1


# The profiler's reader makes a type without a module, of which Python 3.12 warns.
@pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")
def test_a_traced_run_tells_the_time_of_its_operations(session, tmp_path):
    result = session.run_with_metadata(product, (MATRIX,), trace_dir=tmp_path)
    np.testing.assert_array_equal(result.outputs, MATRIX @ MATRIX)
    assert result.metadata.op_secs
    for name, secs in result.metadata.op_secs.items():
        assert f"%{name} = " in result.metadata.hlo_text
        assert secs > 0


def test_a_directory_without_a_trace_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="left no"):
        op_secs(tmp_path)
