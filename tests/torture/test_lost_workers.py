"""Whatever a merge was doing when a worker was killed: right rows, exact metrics, one commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.torture.sizes import first_seed, size

pytestmark = pytest.mark.torture

ROOT = Path(__file__).parents[2]
KILLS = size("WORKERS", small=2, full=20)


def test_merges_that_lose_a_worker_give_right_rows_and_exact_metrics(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each merge makes one commit."""
    seed = first_seed()
    program = [sys.executable, "-m", "tests.torture.losing_workers"]
    ran = subprocess.run(
        [*program, str(tmp_path), str(KILLS), str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300 + 90 * KILLS,
        check=False,
    )
    assert ran.returncode == 0, f"seed {seed}: {ran.stderr[-6000:]}"
    outcomes = json.loads(ran.stdout.splitlines()[-1])
    undisturbed, disturbed = outcomes["undisturbed"], outcomes["disturbed"]

    assert all(outcome["is_right"] for outcome in undisturbed.values()), undisturbed
    assert len(disturbed) == KILLS
    wrong = [
        outcome
        for outcome in disturbed
        if not outcome["is_right"]
        or outcome["metrics"] != undisturbed[outcome["strategy"]]["metrics"]
        or outcome["written_by"] != undisturbed[outcome["strategy"]]["written_by"]
        or (outcome["version"], outcome["warnings"]) != (1, [])
        # What was on the killed worker alone was lost, and the merge began again.
        or (outcome["killed_in"] == "source lost" and outcome["attempts"] == 1)
        or outcome["killed_in"] is None
    ]
    phases = Counter(outcome["killed_in"] for outcome in disturbed)
    strategies = Counter(outcome["strategy"] for outcome in disturbed)
    again = sum(outcome["attempts"] > 1 for outcome in disturbed)
    record_property(
        "lost workers",
        f"{len(disturbed) - len(wrong)} of {KILLS} right, seed {seed}; killed in "
        f"{_counts(phases)}; {_counts(strategies)}; {again} began again without their source",
    )
    assert not wrong, f"seed {seed}: {json.dumps(wrong, indent=1)}"


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))
