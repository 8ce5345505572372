"""The launcher of local jobs: output, exit codes, signals, restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from estimator import launch

LIMIT_SECS = 120
START = """
import os, pathlib, signal, sys, threading
index = int(os.environ["JAX_PROCESS_ID"])
"""
WAIT = "threading.Event().wait()\n"


def launcher(script: str, folder: Path, *options: str) -> subprocess.Popen[str]:
    """Starts a job of two processes that run `script`, in which `index` is that of the process."""
    path = folder / "script.py"
    path.write_text(START + script)
    return subprocess.Popen(
        [sys.executable, launch.__file__, "--processes", "2", *options, str(path), "argument"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(job: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Returns exit code and lines of a job; kills it if it takes too long."""
    try:
        output, _ = job.communicate(timeout=LIMIT_SECS)
    finally:
        job.kill()
    return job.returncode, output.splitlines()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_each_process_learns_its_place_and_its_lines_carry_it(tmp_path):
    script = """
print(os.environ["JAX_NUM_PROCESSES"], os.environ["JAX_NUM_CPU_DEVICES"], *sys.argv[1:])
print("no newline", end="")
"""
    code, lines = ended(launcher(script, tmp_path, "--devices-per-process", "3"))
    assert code == 0
    assert sorted(lines) == [
        "[0] 2 3 argument",
        "[0] no newline",
        "[1] 2 3 argument",
        "[1] no newline",
    ]


def test_the_first_failure_ends_the_others_and_is_the_exit_code(tmp_path):
    script = "if index == 1: sys.exit(7)\n"
    script += "pathlib.Path('pid').write_text(str(os.getpid()))\n" + WAIT
    code, lines = ended(launcher(script, tmp_path))
    assert code == 7
    assert "[launch] Process 1 ended with exit code 7." in lines
    pid = tmp_path / "pid"  # not there if it was ended before it came so far
    assert not pid.exists() or is_gone(int(pid.read_text()))


def test_what_the_others_say_after_a_failure_is_heard_to_the_end(tmp_path):
    script = """
pid = pathlib.Path("pid")
if index == 0:
    pathlib.Path("new").write_text(str(os.getpid()))
    os.rename("new", pid)
    sys.exit(7)
while not pid.exists():
    pass
try:
    while True:  # until the launcher has seen the end of process 0
        os.kill(int(pid.read_text()), 0)
except ProcessLookupError:
    pass
for number in range(100):
    print("line", number, flush=True)
sys.exit(3)
"""
    code, lines = ended(launcher(script, tmp_path))
    assert code == 7
    assert [line for line in lines if line.startswith("[1]")] == [
        f"[1] line {number}" for number in range(100)
    ]


def test_an_end_by_a_signal_is_given_as_shells_do(tmp_path):
    script = "if index == 0: os.kill(os.getpid(), signal.SIGKILL)\n" + WAIT
    code, _ = ended(launcher(script, tmp_path))
    assert code == 128 + signal.SIGKILL


def test_sigterm_goes_to_all_processes_and_nothing_is_restarted(tmp_path):
    script = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    script += "print('ready')\n" + WAIT
    job = launcher(script, tmp_path, "--max-restarts", "5")
    assert job.stdout is not None
    assert sorted(job.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
    job.send_signal(signal.SIGTERM)
    code, lines = ended(job)
    assert code == 143
    assert not any("restart" in line for line in lines)


def test_a_failed_job_is_restarted_as_a_whole(tmp_path):
    script = """
if index == 0:
    runs = pathlib.Path("runs")
    run = int(runs.read_text()) + 1 if runs.exists() else 1
    runs.write_text(str(run))
    print("run", run)
    sys.exit(0 if run == 3 else 1)
"""
    code, lines = ended(launcher(script, tmp_path, "--max-restarts", "3"))
    assert code == 0
    assert [line for line in lines if "run " in line and "launch" not in line] == [
        "[0] run 1",
        "[0] run 2",
        "[0] run 3",
    ]
    assert sum("restart" in line for line in lines) == 2


def test_the_restarts_end(tmp_path):
    code, lines = ended(launcher("sys.exit(5)", tmp_path, "--max-restarts", "1"))
    assert code == 5
    assert sum("restart 1 of 1" in line for line in lines) == 1


def test_a_number_of_processes_that_cannot_be_is_refused(capsys):
    with pytest.raises(SystemExit):
        launch.main(["--processes", "0", "script.py"])
    assert "0 is not a positive number" in capsys.readouterr().err
