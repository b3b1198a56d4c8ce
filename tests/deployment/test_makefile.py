from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def _run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    # A run of the tests under `make test` hands its own flags and level down: not to these.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"JAVA_HOME", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    }
    return subprocess.run(
        command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, check=False
    )


def _fake_java(directory: Path, answer: str) -> Path:
    """A directory with a `java` that answers `-version` so."""
    java = directory / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{answer}\nEND\n")
    java.chmod(0o755)
    return directory


JAVA_11 = 'openjdk version "11.0.2" 2019-01-15\nOpenJDK Runtime Environment (build 11.0.2+9)'


@pytest.mark.parametrize("target", ["demo", "demo-cdc", "ui", "test"])
def test_without_a_fit_java_make_says_in_one_line_what_to_install(
    target: str, tmp_path: Path
) -> None:
    path = f"{_fake_java(tmp_path, JAVA_11)}/bin{os.pathsep}{os.environ['PATH']}"

    ran = _run(["make", target], PATH=path)

    assert ran.returncode != 0
    (line,) = (ran.stdout + ran.stderr).splitlines()
    assert "Java 17 or 21" in line
    assert "found Java 11" in line


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "21" 2023-09-19', None),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.1"', None),
        ('java version "1.8.0_392"', "Java 8"),
        ('openjdk version "24.0.1" 2025-04-15', "Java 24"),
        ("Unable to locate a Java Runtime.", "none"),
    ],
)
def test_java_17_and_21_are_fit(answer: str, found: str | None, tmp_path: Path) -> None:
    ran = _run([".ci/require-java"], JAVA_HOME=str(_fake_java(tmp_path, answer)))

    if found is None:
        assert (ran.returncode, ran.stdout) == (0, "")
    else:
        assert ran.returncode == 1
        (line,) = ran.stdout.splitlines()
        assert f"found {found} as" in line


def test_modules_are_compiled_once_whatever_the_environment_says() -> None:
    program = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"
    shown = f"show: ; @python3 -c '{program}'"

    ran = _run(["make", "--eval", shown, "show"], PYTHONDONTWRITEBYTECODE="1")

    assert ran.stdout.split() == ["False", str(ROOT / ".venv/pycache")]


@pytest.mark.parametrize("target", ["demo", "ui"])
@pytest.mark.parametrize("place", ["moon", "", "local cluster"])
def test_an_unknown_place_of_the_demo_fails_in_one_line(target: str, place: str) -> None:
    ran = _run(["make", target, f"ON={place}"])

    assert ran.returncode != 0
    (line,) = (ran.stdout + ran.stderr).splitlines()
    assert f"ON is '{place}': known are local cluster object_store" in line


def test_each_place_of_the_demo_is_chosen_by_one_variable() -> None:
    commands = {
        place: _run(["make", "--dry-run", "--assume-old=.venv/.installed", "demo", f"ON={place}"])
        for place in ("local", "cluster", "object_store")
    }

    assert "demo_environments" not in commands["local"].stdout
    for place in ("cluster", "object_store"):
        assert f"assets.demo_environments {place} " in commands[place].stdout


def test_the_ui_starts_without_dagsters_advice_on_its_command() -> None:
    commands = _run(["make", "--dry-run", "--assume-old=.venv/.installed", "ui"]).stdout
    [setting] = re.findall(r"PYTHONWARNINGS='([^']+)'", commands)
    program = "import warnings; warnings.warn('{} is superseded and discouraged', FutureWarning)"

    for warned, shown in (("Function `dev_command`", False), ("Function `other`", True)):
        ran = _run([sys.executable, "-c", program.format(warned)], PYTHONWARNINGS=setting)
        assert bool(ran.stderr) is shown


def test_help_is_the_default_and_lists_each_command() -> None:
    listed = _run(["make"]).stdout

    for command in ("demo", "demo-cdc", "land", "ui", "test", "check", "test-all", "clean"):
        assert f"make {command} " in listed


def _progress(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, ".ci/progress", *arguments], DELTAWEAVE_PROGRESS_SECONDS="0.2")


def test_a_long_command_of_make_says_what_it_waits_for(tmp_path: Path) -> None:
    """The last line that begins with a verb, without addresses; warnings are for the log alone."""
    log = tmp_path / "step.log"
    lines = ["Collecting pyspark==4.2.0", "  Downloading https://a.example/b/delta.jar (7 MB)"]
    lines += ["26/11/30 WARN Utils: slow", "WARNING: Using incubator modules"]
    program = "import sys, time; print(sys.argv[1], flush=True); time.sleep(1)"

    ran = _progress(str(log), sys.executable, "-c", program, "\n".join(lines))

    assert (ran.returncode, ran.stderr) == (0, "")
    shown = ran.stdout.splitlines()
    assert len(shown) >= 3
    assert all(re.fullmatch(r" +\d+ s: Downloading delta\.jar \(7 MB\)", each) for each in shown)
    assert log.read_text().splitlines() == lines


def test_a_command_of_make_that_fails_prints_its_output(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    program = "import sys; print('Collecting a'); sys.exit('No space left on device')"

    ran = _progress(str(log), sys.executable, "-c", program)

    assert ran.returncode == 1
    assert "No space left on device" in ran.stderr


def test_each_step_of_installing_shows_its_progress() -> None:
    commands = _run(["make", "--dry-run", "--assume-new=pyproject.toml", ".venv/.installed"]).stdout
    joined = commands.replace("\\\n", " ").splitlines()
    steps = [each for each in joined if re.search(r"-m venv|pip install|first-session", each)]

    assert len(steps) == 3
    assert all(".ci/progress .venv/" in each for each in steps[1:])
    assert not any("--quiet" in each for each in steps)
