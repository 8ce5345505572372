import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hooks import EverySecs, EverySteps, SummaryHook


def test_each_due_step_is_written_with_its_own_number_and_values(make_view, writer):
    hook = SummaryHook(writer, EverySteps(3))
    hook.after_loop(
        make_view(
            4, 10, losses=[5, 6, 7, 8, 9, 10], metrics={"accuracy": [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]}
        )
    )
    hook.end(make_view(10, 10))
    assert sorted(writer.scalars) == [
        ("accuracy", 6, 0.6),
        ("accuracy", 9, 0.9),
        ("loss", 6, 6.0),
        ("loss", 9, 9.0),
    ]


# The fixture only makes views; it may be shared by the examples.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(every=st.integers(1, 12), start=st.integers(0, 20), lengths=st.lists(st.integers(1, 15)))
def test_what_is_written_does_not_depend_on_how_the_run_was_cut(make_view, every, start, lengths):
    written = []

    class Writer:
        def add_scalar(self, tag, scalar_value, global_step=None):
            written.append((tag, global_step, scalar_value))

        def flush(self):
            pass

    hook, step = SummaryHook(Writer(), EverySteps(every)), start
    for length in lengths:
        losses = range(step + 1, step + length + 1)
        hook.after_loop(make_view(step, step + length, losses=losses))
        step += length
    hook.end(make_view(step, step))
    assert written == [
        ("loss", at, float(at)) for at in range(start + 1, step + 1) if at % every == 0
    ]


def test_a_loop_without_a_due_step_is_not_read(make_view, writer):
    SummaryHook(writer, EverySteps(100)).after_loop(make_view(0, 99))
    assert make_view.reads == []
    assert writer.scalars == []


def test_a_period_in_seconds_writes_the_last_step_of_the_due_loop(make_view, writer, clock):
    hook = SummaryHook(writer, EverySecs(60, clock))
    hook.after_loop(make_view(0, 3, losses=[1, 2, 3]))
    assert make_view.reads == []
    clock.advance(60)
    hook.after_loop(make_view(3, 6, losses=[4, 5, 6]))
    hook.end(make_view(6, 6))
    assert writer.scalars == [("loss", 6, 6.0)]


def test_a_loop_is_read_only_when_the_next_one_is_under_way(make_view, writer):
    hook = SummaryHook(writer, EverySteps(2))
    hook.after_loop(make_view(0, 2, losses=[1, 2]))
    assert make_view.reads == []
    hook.after_loop(make_view(2, 3, losses=[3]))
    assert writer.scalars == [("loss", 2, 2.0)]


def test_an_error_does_not_swallow_what_was_due(make_view, writer):
    hook = SummaryHook(writer, EverySteps(2))
    hook.after_loop(make_view(0, 2, losses=[1, 2]))
    hook.on_error(RuntimeError())
    assert writer.scalars == [("loss", 2, 2.0)]


def test_loops_are_not_cut_for_summaries(run_loops, writer):
    assert run_loops([SummaryHook(writer, EverySteps(3))], last_step=10, loop_steps=10) == [(0, 10)]


@pytest.mark.parametrize("fails", [False, True])
def test_the_writer_is_flushed_however_the_run_ends(make_view, writer, fails):
    hook = SummaryHook(writer, EverySteps(10))
    if fails:
        hook.on_error(ValueError())
    else:
        hook.end(make_view(0, 10))
    assert writer.flushes == 1


def test_another_process_than_the_chief_neither_writes_nor_reads(make_view, make_context, writer):
    hook = SummaryHook(writer, EverySteps(1))
    hook.begin(make_context(is_chief=False))
    hook.after_loop(make_view(0, 5))
    hook.end(make_view(0, 5))
    assert (writer.scalars, writer.flushes, make_view.reads) == ([], 0, [])


def test_tensorboard_reads_back_what_was_written(make_view, tmp_path):
    tensorboardX = pytest.importorskip("tensorboardX")
    from tensorboardX.proto import event_pb2

    with tensorboardX.SummaryWriter(str(tmp_path)) as writer:
        hook = SummaryHook(writer, EverySteps(2))
        hook.after_loop(make_view(0, 4, losses=[1, 2, 3, 4]))
        hook.end(make_view(0, 4))
    data = next(tmp_path.iterdir()).read_bytes()
    parse = event_pb2.Event.FromString  # pyright: ignore[reportAttributeAccessIssue]
    events = []
    while data:  # a record is: length (8 bytes), its CRC (4), the event, its CRC (4)
        length = int.from_bytes(data[:8], "little")
        events.append(parse(data[12 : 12 + length]))
        data = data[16 + length :]
    scalars = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert scalars == [(2, "loss", 2.0), (4, "loss", 4.0)]
