"""The report of `python -m benchmarks merge --profile`: tables for the screen, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Group
from rich.table import Table

from benchmarks.merge.profile import Profile

_MIB = 1 << 20


def profiles_table(profiles: Sequence[Profile]) -> Group:
    """Lay out the profiles for 80 characters: seconds beside the limit, then the work done."""
    seconds = _table(
        ("whole", "jobs", "planning", "commit", "Python", "limit", "times\nlimit"),
        "Seconds; limit: pyarrow reads the keys and writes the changed rows",
    )
    work = _table(
        ("jobs", "tasks", "tasks,\nseconds", "py4j\ncalls", "MiB of\ncandidates", "MiB\nwritten"),
        None,
    )
    for each in profiles:
        label = (each.case.label, "on" if each.deletion_vectors else "off")
        parts = each.parts
        seconds.add_row(
            *label,
            *(f"{part:.2f}" for part in (parts.whole, parts.jobs, parts.planning, parts.commit)),
            f"{parts.python:.2f}",
            f"{each.limit.seconds:.3f}",
            "-" if each.times_limit is None else f"{each.times_limit:.1f}",
        )
        work.add_row(
            *label,
            f"{each.jobs:,}",
            f"{each.tasks:,}",
            f"{each.task_seconds:.2f}",
            f"{each.calls:,}",
            f"{each.read_bytes / _MIB:.1f}",
            f"{each.written_bytes / _MIB:.1f}",
        )
    return Group(seconds, work)


def _table(headings: Sequence[str], caption: str | None) -> Table:
    table = Table(box=box.SIMPLE, padding=0, caption=caption, caption_justify="left")
    table.add_column("case", vertical="bottom", no_wrap=True)
    for heading in ("vectors", *headings):
        table.add_column(heading, justify="right", vertical="bottom")
    return table


def write_profiles(
    profiles: Sequence[Profile],
    settings: Mapping[str, object],
    environment: Mapping[str, object],
    path: Path,
) -> None:
    """Write the profiles as JSON.

    Args:
        profiles: The profiles.
        settings: The benchmark's settings by name, such as scale and runs.
        environment: Versions and the machine's size, by name.
        path: The file.
    """
    content = {
        "benchmark": "profile",
        **settings,
        "environment": environment,
        "cases": [_as_json(each) for each in profiles],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _as_json(profile: Profile) -> dict[str, object]:
    return {
        "name": profile.case.name,
        "deletion_vectors": profile.deletion_vectors,
        "strategy": profile.strategy,
        "seconds": asdict(profile.parts),
        "jobs": profile.jobs,
        "tasks": profile.tasks,
        "task_seconds": profile.task_seconds,
        "py4j_calls": profile.calls,
        "candidate_bytes": profile.read_bytes,
        "written_bytes": profile.written_bytes,
        "limit_seconds": asdict(profile.limit),
        "times_limit": profile.times_limit,
    }
