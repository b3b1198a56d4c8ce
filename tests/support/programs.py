"""A module of the tests that runs as a program of its own, and prints what it came to as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Outcome(NamedTuple):
    """The last line that a program printed, as JSON; and all that it printed."""

    found: dict[str, Any]
    printed: str


def outcome_of(module: str, *arguments: str, timeout: float, directory: Path = ROOT) -> Outcome:
    """Run a program, which has to succeed within `timeout` seconds."""
    ran = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-6000:]
    return Outcome(json.loads(ran.stdout.splitlines()[-1]), ran.stdout + ran.stderr)
