"""The recipes of docs/hosts.md put each process in its place."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from estimator.distributed import find_cluster

PAGE = (Path(__file__).parents[1] / "docs" / "hosts.md").read_text()
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def objects():
    """Returns what the page gives to Kubernetes by kind."""
    return {each["kind"]: each for text in blocks("yaml") for each in yaml.safe_load_all(text)}


def environment(job, index):
    """Returns the variables that the pod `index` of a Job is started with."""
    (container,) = job["template"]["spec"]["containers"]
    variables = {}
    for entry in container["env"]:
        if "value" not in entry:
            assert entry["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
        variables[entry["name"]] = entry.get("value", str(index))
    return variables


def job_and_first_pod(kind):
    """Returns the spec of the Job in the object of `kind`, and the address of its first pod."""
    given = objects()[kind]
    name, spec = given["metadata"]["name"], given["spec"]
    if kind == "JobSet":  # pods are <set>-<replicated job>-<job>-<pod>, in the subdomain <set>
        (replicated,) = spec["replicatedJobs"]
        assert replicated["replicas"] == 1
        return replicated["template"]["spec"], f"{name}-{replicated['name']}-0-0.{name}"
    return spec, f"{name}-0.{spec['template']['spec']['subdomain']}"


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_every_pod_finds_its_place_and_the_coordinator(kind):
    job, first_pod = job_and_first_pod(kind)
    assert job["completionMode"] == "Indexed"
    count = job["completions"]
    assert job["parallelism"] == count

    for index in range(count):
        cluster = find_cluster(None, None, None, environment(job, index))
        assert (cluster.num_processes, cluster.process_id) == (count, index)
        assert cluster.coordinator_address.rpartition(":")[0] == first_pod


def test_the_service_selects_the_pods_of_the_job_and_gives_them_their_subdomain():
    service, job = objects()["Service"], objects()["Job"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]


def test_a_job_that_was_preempted_goes_back_into_the_queue_of_slurm_and_others_do_not(tmp_path):
    (script,) = blocks("bash")
    for code, requeued in ((143, True), (0, False), (1, False)):
        log = tmp_path / str(code)
        fakes = f'srun() {{ return {code}; }}\nscontrol() {{ echo "$*" > {log}; }}\n'
        done = subprocess.run(
            ["bash", "-c", fakes + script], env={"SLURM_JOB_ID": "4711"}, timeout=60
        )
        assert done.returncode == code
        assert log.exists() == requeued
        assert not requeued or log.read_text() == "requeue 4711\n"
