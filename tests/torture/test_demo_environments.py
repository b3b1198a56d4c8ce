"""The demo on a cluster and on an object store merges what it merges on one machine."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torture

ROOT = Path(__file__).parents[2]
# As on the README's page, of the demo on one machine.
LAST_MERGE = ["2003-05", "147", "1,227", "57", "0", "4", "of", "9", "3", "0"]
MOST_FREQUENT = ["12", "1,930", "48,669"]
SAME_ROWS = "Both tables hold the same 68,117 rows."


def demo(place: str, folder: Path) -> str:
    """What the demo says in a place, with a lake and a Dagster home in a folder."""
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "assets.demo_environments",
            place,
            sys.executable,
            "-m",
            "assets.demo",
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}",
            "DELTAWEAVE_LAKE": str(folder / "lake"),
            "DAGSTER_HOME": str(folder / "home"),
        },
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("place", ["cluster", "object_store"])
def test_the_demo_merges_the_same_rows_in_each_place_and_leaves_no_process(
    place: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    started = time.monotonic()
    first = demo(place, tmp_path)
    seconds = time.monotonic() - started
    again = demo(place, tmp_path)

    lines = [line.split() for line in first.splitlines()]
    assert "10/10" in first
    assert SAME_ROWS in first
    assert LAST_MERGE in [line[: len(LAST_MERGE)] for line in lines]
    assert MOST_FREQUENT in lines
    assert "Nothing new" in again
    for said in (first, again):
        assert f"Stopped the {place}." in said
        assert f"make ui ON={place}" in said
    [port] = set(re.findall(r"127\.0\.0\.1:(\d+)", first))
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0, "it still listens"
    record_property(f"demo ON={place}", f"{seconds:.0f} s")
