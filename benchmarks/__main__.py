"""Holds the contests against named peers, and writes the results.

    make bench                          all of them, with their environments, to RESULTS.md
    make bench CONTESTS="mlp predict"   some of them, to the screen
    python -m benchmarks mlp            likewise, in this environment

The machine should have nothing else to do: the contestants have different numbers of threads, and
where these compete with other programs, the ratios say little.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks import processes, results
from benchmarks.contest import Contest

CONTESTS = (
    "mlp",
    "convnet",
    "transformer",
    "predict",
    "evaluate",
    "hook_cost",
    "cold_start",
    "import_time",
)


def contest_of(name: str) -> Contest:
    """Returns the contest in the module of this name."""
    return importlib.import_module(f"benchmarks.{name}").CONTEST


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("contests", nargs="*", metavar="CONTEST", help=f"of {', '.join(CONTESTS)}")
    parser.add_argument("--rounds", type=int, help="default: see each contest, at least 5")
    parser.add_argument("--secs", type=float, help="that one measurement lasts, about")
    parser.add_argument("--tensorflow", metavar="PYTHON", help="interpreter with TensorFlow 2.15")
    parser.add_argument("--output", type=Path, help="the file for the results; default: the screen")
    options = parser.parse_args()
    names = options.contests or CONTESTS
    if unknown := set(names) - set(CONTESTS):
        parser.error(f"{sorted(unknown)} are no contests. There are {', '.join(CONTESTS)}.")

    pythons = {"jax": sys.executable, "tensorflow": options.tensorflow}
    contests = {name: contest_of(name) for name in names}
    outcomes = {}
    for name, contest in contests.items():
        rounds = options.rounds or contest.rounds
        secs = options.secs or contest.secs
        outcomes[name] = processes.run(name, contest, pythons, rounds, secs)
        print(results.section(contest, outcomes[name]), flush=True)
    if options.output:
        command = (
            "make bench" if not options.contests else f'make bench CONTESTS="{" ".join(names)}"'
        )
        options.output.write_text(results.document(command, contests, outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
