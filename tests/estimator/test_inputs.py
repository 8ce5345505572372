"""Which calls of input_fn feed a job, and what they are told."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import estimator as est
from estimator.inputs import input_calls
from input_pipeline import CombinedSource, Dataset, make_source
from tests import fakes

pytestmark = pytest.mark.usefixtures("no_new_threads")

DEPLOYMENTS = ["per_host", "per_replica", "broadcast", "sliced"]


def calls_of_job(deployment, batch_size, replicas_of_hosts):
    """Returns the calls of each process of a job with so many replicas on each."""
    first = [0, *itertools.accumulate(replicas_of_hosts)]
    return [
        input_calls(
            deployment,
            batch_size,
            num_hosts=len(replicas_of_hosts),
            current_host=host,
            num_replicas=first[-1],
            local_replicas=range(first[host], first[host + 1]),
        )
        for host in range(len(replicas_of_hosts))
    ]


def read_all(contexts, open_input, position=None):
    """Reads what one process reads; returns its batches, and the position after each."""
    parts = [make_source(open_input(c), batch_size=c.batch_size) for c in contexts]
    source = parts[0] if len(parts) == 1 else CombinedSource(parts)
    if position is not None:
        source.seek(position)
    batches, positions = [], [source.position()]
    while (stack := source.read(3)) is not None:
        batches += [row[:n].tolist() for row, n in zip(stack.features, stack.rows, strict=False)]
        positions += stack.positions
    return batches, positions


hosts = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(deployment=st.sampled_from(DEPLOYMENTS), replicas=hosts, per_replica=st.integers(1, 5))
def test_the_calls_of_a_job_make_one_global_batch(deployment, replicas, per_replica):
    total = sum(replicas)
    by_host = calls_of_job(deployment, total * per_replica, replicas)
    calls = list(itertools.chain.from_iterable(by_host))

    assert sum(call.batch_size for call in calls) == total * per_replica
    assert [call.input_pipeline_id for call in calls] == list(range(len(calls)))
    assert {call.num_input_pipelines for call in calls} == {len(calls)}
    assert {call.num_replicas for call in calls} == {total}
    for host, own in enumerate(by_host):
        assert {(call.num_hosts, call.current_host) for call in own} <= {(len(replicas), host)}


@pytest.mark.parametrize(
    "deployment, sizes",
    [
        ("per_host", [[8], [4]]),
        ("per_replica", [[4, 4], [4]]),
        ("broadcast", [[12], []]),
        ("sliced", [[12], []]),
    ],
)
def test_each_call_gets_the_batch_size_of_its_share(deployment, sizes):
    calls = calls_of_job(deployment, 12, [2, 1])

    assert [[call.batch_size for call in own] for own in calls] == sizes


@settings(max_examples=60, deadline=None)
@given(
    deployment=st.sampled_from(["per_host", "per_replica"]),
    size=st.integers(1, 40),
    epochs=st.integers(1, 3),
    replicas=hosts,
    per_replica=st.integers(1, 4),
    stop=st.integers(0, 40),
)
def test_hosts_read_each_example_once_an_epoch_before_and_after_a_resume(
    deployment, size, epochs, replicas, per_replica, stop
):
    """The oracle: each call reads every n-th example of the shuffled epochs, on its own."""
    by_host = calls_of_job(deployment, sum(replicas) * per_replica, replicas)
    pipelines = sum(map(len, by_host))
    orders = [np.random.default_rng([5, epoch]).permutation(size) for epoch in range(epochs)]

    def open_input(context):
        shuffled = Dataset.from_arrays(np.arange(size)).shuffle(seed=5)
        shard = shuffled.shard(context.num_input_pipelines, context.input_pipeline_id)
        return shard.repeat(epochs)

    seen = []
    for own in by_host:
        streams = [
            np.concatenate([order[call.input_pipeline_id :: pipelines] for order in orders])
            for call in own
        ]
        steps = max(-(-len(s) // c.batch_size) for s, c in zip(streams, own, strict=True))
        expected = [
            [
                row
                for s, c in zip(streams, own, strict=True)
                for row in s[step * c.batch_size : (step + 1) * c.batch_size].tolist()
            ]
            for step in range(steps)
        ]
        batches, positions = read_all(own, open_input)
        assert batches == expected
        at = min(stop, steps)
        assert read_all(own, open_input, positions[at])[0] == expected[at:]
        seen += itertools.chain.from_iterable(batches)
    assert sorted(seen) == sorted(list(range(size)) * epochs)


# With an Estimator


class Contexts:
    """An input_fn that gives each pipeline its shard of `numbered(count)`."""

    def __init__(self, count):
        self.count = count
        self.calls = []

    def __call__(self, params, context):
        assert params["context"] is context and params["batch_size"] == context.batch_size
        self.calls.append(context)
        shard = (context.num_input_pipelines, context.input_pipeline_id)
        return fakes.dataset(self.count).shard(*shard)


def make(model_dir, *, devices=4, deployment="per_replica", **settings):
    return est.Estimator(
        fakes.mlp,
        model_dir=model_dir,
        config=fakes.config(
            devices=devices,
            input=est.InputPipelineConfig(deployment=deployment),
        ),
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
        **settings,
    )


def test_each_replica_has_a_call_of_its_own(tmp_path):
    ids, input_fn = fakes.IdLog(), Contexts(32)
    make(tmp_path, params={"host_call": ids}).train(input_fn)

    assert [(c.input_pipeline_id, c.num_input_pipelines, c.batch_size) for c in input_fn.calls] == [
        (replica, 4, 2) for replica in range(4)
    ]
    assert {(c.num_hosts, c.current_host, c.num_replicas) for c in input_fn.calls} == {(1, 0, 4)}
    assert ids.ids[0] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert sorted(ids.all_ids) == list(range(32))


@pytest.mark.parametrize("deployment", ["per_host", "broadcast", "sliced"])
def test_one_process_is_otherwise_fed_by_one_call(tmp_path, deployment):
    ids, input_fn = fakes.IdLog(), Contexts(32)
    make(tmp_path, deployment=deployment, params={"host_call": ids}).train(input_fn)

    (context,) = input_fn.calls
    assert (context.input_pipeline_id, context.num_input_pipelines) == (0, 1)
    assert context.batch_size == 8 and context.num_replicas == 4
    assert ids.ids[0] == list(range(8))


def test_evaluation_and_prediction_count_each_example_of_all_replicas_once(tmp_path):
    one = make(tmp_path / "one", devices=1, deployment="per_host")
    four = make(tmp_path / "four")

    wanted = one.evaluate(lambda: fakes.numbered(19))
    assert four.evaluate(Contexts(19))["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    outputs = sorted(float(result["output"]) for result in four.predict(Contexts(19)))
    by_one = sorted(float(result["output"]) for result in one.predict(lambda: fakes.numbered(19)))
    np.testing.assert_allclose(outputs, by_one, rtol=1e-5)


def test_a_run_resumes_on_another_number_of_replicas_at_the_next_example(tmp_path):
    first, second = fakes.IdLog(), fakes.IdLog()
    make(tmp_path, params={"host_call": first}).train(Contexts(40), steps=2)
    make(tmp_path, devices=2, params={"host_call": second}).train(Contexts(40), steps=3)

    assert sorted(first.all_ids) == list(range(16))
    assert sorted(second.all_ids) == list(range(16, 40))


def test_an_error_in_one_pipeline_is_raised_as_itself_and_says_which(tmp_path):
    error = ValueError("bad record 17")

    def batches(context):
        yield from itertools.islice(fakes.batches(40, context.batch_size), 2)
        if context.input_pipeline_id == 3:
            raise error
        yield from fakes.batches(40, context.batch_size)

    with pytest.raises(ValueError) as caught:
        make(tmp_path).train(lambda context: batches(context))
    assert caught.value is error
    assert "input pipeline 3 of 4" in error.__notes__[0]


def test_inputs_that_are_open_are_closed_when_the_next_one_cannot_be(tmp_path):
    closed = []

    class Closing(Dataset):
        def source(self, *args, **options):
            source = super().source(*args, **options)
            source.close = lambda: closed.append(self)  # type: ignore[method-assign]
            return source

    def input_fn(context):
        if context.input_pipeline_id == 2:
            raise OSError("no such file")
        return Closing(fakes.dataset(8)._plan)

    with pytest.raises(OSError, match="no such file"):
        make(tmp_path).train(input_fn)
    assert len(closed) == 2
