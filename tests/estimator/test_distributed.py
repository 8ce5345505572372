"""The cluster that arguments and variables name."""

from __future__ import annotations

import json

import pytest

from estimator.distributed import Cluster, find_cluster, initialize

ADDRESS = "10.0.0.1:1234"
JAX_VARIABLES = {
    "JAX_COORDINATOR_ADDRESS": ADDRESS,
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "2",
}


def found(environment: dict[str, str], *arguments) -> Cluster | None:
    return find_cluster(*(arguments or (None, None, None)), environment)


def tf_config(kind: str, index: int, **cluster: list[str]) -> dict[str, str]:
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def place(cluster: Cluster | None) -> tuple[int, int, str | None, str]:
    assert cluster is not None
    return (
        cluster.process_id,
        cluster.num_processes,
        cluster.coordinator_address,
        cluster.role,
    )


def test_without_a_word_there_is_none():
    assert found({}) is None


def test_variables_name_it():
    assert place(found(JAX_VARIABLES)) == (2, 4, ADDRESS, "worker")


def test_arguments_win_over_variables_one_by_one():
    cluster = found(JAX_VARIABLES, "other:1", None, 0)
    assert place(cluster) == (0, 4, "other:1", "worker")


def test_variables_win_over_tf_config():
    environment = {**tf_config("worker", 0, worker=["a:1"]), **JAX_VARIABLES}
    assert place(found(environment)) == (2, 4, ADDRESS, "worker")


@pytest.mark.parametrize("left_out", JAX_VARIABLES)
def test_what_is_missing_is_named(left_out):
    environment = {name: value for name, value in JAX_VARIABLES.items() if name != left_out}
    with pytest.raises(ValueError, match=rf"in part: \w+ \({left_out}\) is missing"):
        found(environment)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((ADDRESS, 2, 2), "num_processes=2 and process_id=2 do not go together"),
        ((ADDRESS, 0, 0), "num_processes=0"),
        ((ADDRESS, "two", 0), "num_processes='two' must be a number"),
        (("localhost", 2, 0), "coordinator_address='localhost' must be 'host:port'"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        found({}, *arguments)


@pytest.mark.parametrize(
    ("kind", "index", "process_id"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)]
)
def test_chief_and_workers_of_tf_config_become_the_processes(kind, index, process_id):
    environment = tf_config(kind, index, chief=["a:1"], worker=["b:1", "c:1"])
    assert place(found(environment)) == (process_id, 3, "a:1", "worker")


def test_the_evaluator_of_tf_config_stays_outside():
    environment = tf_config("evaluator", 0, chief=["a:1"], worker=["b:1"])
    assert place(found(environment)) == (0, 1, None, "evaluator")


def test_a_tf_config_without_a_cluster_is_one_process():
    assert place(found({"TF_CONFIG": "{}"}))[:2] == (0, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("[1]", "cannot be read"),
        (
            tf_config("worker", 2, worker=["a:1"])["TF_CONFIG"],
            "worker 2, which its cluster has not",
        ),
        (tf_config("ps", 0, ps=["a:1"], worker=["b:1"])["TF_CONFIG"], "parameter servers"),
    ],
)
def test_a_tf_config_that_cannot_be_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        found({"TF_CONFIG": text})


def test_the_times_are_checked_before_anything_is_joined():
    with pytest.raises(ValueError, match="heartbeat_timeout_secs"):
        initialize(ADDRESS, 2, 0, heartbeat_timeout_secs=0)
