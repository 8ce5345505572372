"""The results as Markdown."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping
from pathlib import Path

from benchmarks.contest import Contest, median_of
from benchmarks.processes import Outcome


def machine() -> str:
    """Returns what the numbers were measured on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    return f"{os.cpu_count()} cores of {cpu}, {platform.system()}"


def versions(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Returns a line for each environment with the versions of its libraries."""
    libraries: dict[str, dict[str, str]] = {}
    for outcome in outcomes.values():
        for environment, found in outcome.versions.items():
            libraries.setdefault(environment, {}).update(found)
    return [
        f"- {environment}: "
        + ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
        for environment, found in libraries.items()
    ]


def section(contest: Contest, outcome: Outcome) -> str:
    """Returns the table of a contest, and what became of its targets."""
    rounds = len(outcome.measured[contest.subject])
    versus = "times as long" if contest.unit == "s" else "times as fast"
    lines = [
        f"## {contest.title}",
        "",
        f"{contest.about} {rounds} rounds.",
        "",
        f"| | {contest.unit} | min - max | {contest.subject} is {versus} |",
        "| --- | ---: | ---: | ---: |",
    ]
    for contestant in contest.contestants:
        name = contestant.name
        values = outcome.measured.get(name)
        if values is None:
            lines.append(f"| {name} | | {outcome.absent[name]} | |")
            continue
        ratio = median_of(
            outcome.measured, contest.subject, name, lambda ours, theirs: ours / theirs
        )
        lines.append(
            f"| {name} | {number(statistics.median(values))} | {number(min(values))} - "
            f"{number(max(values))} | {'' if name == contest.subject else f'{ratio:.2f}'} |"
        )
    if contest.targets:
        lines += ["", "| Asked | Measured | |", "| --- | ---: | --- |"]
    for target in contest.targets:
        if all(name in outcome.measured for name in target.names):
            value = target.value(outcome.measured)
            met = "yes" if target.met(value) else "**no**"
            lines.append(f"| {target.text} | {value:.2f} | {met} |")
        else:
            lines.append(f"| {target.text} | | not measured |")
    return "\n".join([*lines, ""])


def number(value: float) -> str:
    """Returns three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def document(command: str, contests: Mapping[str, Contest], outcomes: Mapping[str, Outcome]) -> str:
    """Returns all results, with the command that made them."""
    head = [
        "# Results",
        "",
        f"Written by `{command}`. Each contestant is a process of its own, measured in rounds, one "
        "after the other in an order that rotates; the others are idle meanwhile. The tables give "
        "medians over the rounds, and the median of the ratios within a round.",
        "",
        f"- machine: {machine()}",
        *versions(outcomes),
        "",
    ]
    return "\n".join(
        [*head, *(section(contests[name], outcome) for name, outcome in outcomes.items())]
    )
