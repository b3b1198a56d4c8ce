"""The workflows of .github call what the Makefile has, on the pairs that are supported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deltaweave._session import TESTED

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs_of(workflow: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(workflow.read_text())["jobs"])


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_a_workflow_calls_targets_that_exist(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set(re.findall(r"\bmake ([a-z-]+)", re.sub("#.*", "", workflow.read_text())))
    assert jobs_of(workflow)
    assert called <= targets


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_every_action_is_pinned_by_a_commit_and_names_its_release(workflow: Path) -> None:
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert used
    assert [each for each in used if not re.search(r"@[0-9a-f]{40}  # v[\d.]+$", each)] == []


def test_the_jobs_run_what_the_ci_script_runs() -> None:
    script = re.sub("#.*", "", (ROOT / ".ci" / "run").read_text())
    by_script = set(re.findall(r"\bmake (check|test|test-slow|demo|demo-cdc|docs)\b(?!-)", script))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert by_script <= set(re.findall(r"\bmake ([a-z-]+)", workflow))


def test_every_supported_pair_is_tested_each_week() -> None:
    jobs = jobs_of(ROOT / ".github" / "workflows" / "versions.yml")
    assert jobs["pair"]["strategy"]["matrix"]["pair"] == ["+".join(pair) for pair in TESTED]
