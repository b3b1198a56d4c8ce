"""The audit of installed packages, with a pip-audit that gives set answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[2] / ".ci" / "audit"

# In the place of pip-audit: the answer to the probe, which names a file of requirements, and to
# the audit itself.
PIP_AUDIT = """
import sys
probe, audit = {probe!r}, {audit!r}
answer = probe if any(each.startswith("--requirement") for each in sys.argv) else audit
if answer is None:
    sys.exit("ConnectionError: the name does not resolve")
print(answer)
"""


def audited(tmp_path: Path, probe: object, *packages: object) -> subprocess.CompletedProcess[str]:
    answers = [
        None if each is None else json.dumps({"dependencies": each, "fixes": []})
        for each in (probe, list(packages))
    ]
    module = tmp_path / "pip_audit.py"
    module.write_text(PIP_AUDIT.format(probe=answers[0], audit=answers[1]))
    return subprocess.run(
        [sys.executable, AUDIT],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


def package(name: str, *fixed: str) -> dict[str, object]:
    found = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": list(fixed)}
    return {"name": name, "version": "1.0", "vulns": [found]}


SOUND = {"name": "sound", "version": "1.0", "vulns": []}
KNOWN = [package("jinja2", "3.0")]


def test_a_vulnerability_with_a_fixed_release_fails_the_audit(tmp_path: Path) -> None:
    ran = audited(tmp_path, KNOWN, SOUND, package("weak", "1.1", "2.0"))

    assert ran.returncode == 1, ran.stderr
    assert "weak 1.0: PYSEC-1, fixed in 1.1, 2.0" in ran.stdout
    assert "sound" not in ran.stdout


@pytest.mark.parametrize(
    ("found", "reported"),
    [
        (SOUND, "Audited 1 packages: none"),
        (package("weak"), "weak 1.0: PYSEC-1, no release fixes it"),
        (package("pip", "26.0"), "pip 1.0: PYSEC-1, of the installer"),
    ],
)
def test_what_no_release_fixes_is_reported_and_passes(
    tmp_path: Path, found: object, reported: str
) -> None:
    ran = audited(tmp_path, KNOWN, found)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert reported in ran.stdout


@pytest.mark.parametrize(
    ("probe", "reported"),
    [
        (None, "could not be asked for (ConnectionError: the name does not resolve)"),
        # A mirror that answers "not found" for every release.
        ([{"name": "jinja2", "skip_reason": "Dependency not found"}], "passes on no advisories"),
    ],
)
def test_a_service_that_cannot_say_is_one_line_and_passes(
    tmp_path: Path, probe: object, reported: str
) -> None:
    ran = audited(tmp_path, probe, package("weak", "1.1"))

    assert ran.returncode == 0, ran.stderr
    (line,) = ran.stdout.splitlines()
    assert line.startswith("No audit: ")
    assert reported in line
