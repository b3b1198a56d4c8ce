"""Commits to a store with S3's protocol: of several drivers, and where the store gives trouble."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assets.object_store import ObjectStore, Trouble, object_store
from tests.support.drivers_on_a_store import COUNTER, KEY, ROOT, by_drivers, is_commit

pytestmark = pytest.mark.minutes

JAR = ROOT / "platform" / "deltaweave" / "java" / "s3-log-store.jar"
SEED = 49


def trouble_by_chance() -> Callable[[str, str], Trouble]:
    """A store that is slow in commits, throttles requests and loses replies to commits."""
    drawn, lock = random.Random(SEED), threading.Lock()

    def trouble(method: str, path: str) -> Trouble:
        with lock:
            chance, seconds = drawn.random(), drawn.uniform(0.2, 1)
        if not is_commit(method, path):
            return Trouble(is_throttled=chance < 0.01)
        return Trouble(seconds, is_throttled=chance < 0.1, loses_reply=chance > 0.8)

    return trouble


def test_four_drivers_lose_and_double_no_merge() -> None:
    """Each merge adds 1 to a row that all of them change, and inserts a row of its own."""
    store = ObjectStore(access_key=KEY, trouble=trouble_by_chance())
    with object_store(store) as (_, endpoint):
        outcome = by_drivers(store, endpoint, "abcd", merges=8)

    assert outcome.lost == []
    assert outcome.doubled == []
    assert outcome.table[COUNTER] == len(outcome.done) == 32
    assert len(set(outcome.versions)) == 32


@pytest.fixture(scope="module")
def commits() -> dict[str, Any]:
    """What one driver's commits came to."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.store_commits"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found | {"printed": ran.stdout + ran.stderr}


@pytest.mark.parametrize("lost", ["a reply is lost", "all replies are lost"])
def test_a_commit_whose_reply_is_lost_is_not_made_twice(commits: dict[str, Any], lost: str) -> None:
    assert commits[lost] == {"attempts": 1, "warnings": []}


def test_a_commit_does_not_replace_one_of_delta_rs(commits: dict[str, Any]) -> None:
    assert commits["delta-rs commits first"] == {"attempts": 2, "warnings": []}


def test_an_append_through_the_session_replaces_no_commit(commits: dict[str, Any]) -> None:
    assert {"appended", "by delta-rs again"} <= commits["rows"].keys()


def test_a_commit_that_the_store_never_answers_is_unknown(commits: dict[str, Any]) -> None:
    assert commits["it never answers"] == {"error": "CommitStateUnknownError"}


def test_all_that_was_reported_as_done_is_in_the_table_once(commits: dict[str, Any]) -> None:
    reported = {"one", "all", "by delta-rs", "after delta-rs", "by delta-rs again", "appended"}

    assert commits["rows"] == {**dict.fromkeys({*reported, "then"}, 1), COUNTER: 4}


@pytest.mark.parametrize(
    "words",
    ["The store of s3a://deaf replaces files", "S3AFileSystem does not create files conditionally"],
)
def test_a_store_without_conditions_is_warned_of_once(commits: dict[str, Any], words: str) -> None:
    assert commits["printed"].count(words) == 1


def test_a_log_store_that_the_configuration_names_stays(commits: dict[str, Any]) -> None:
    assert commits["is_ours"]
    assert commits["chosen"]


@pytest.mark.usefixtures("commits")  # whose session has fetched the jars
def test_the_jar_in_the_package_is_that_of_its_source(tmp_path: Path) -> None:
    java = (
        subprocess.run(["javac", "-version"], capture_output=True, text=True, check=False)
        if (shutil.which("javac"))
        else None
    )
    if java is None or "javac 17" not in java.stdout:
        pytest.skip("classes are the same for releases of JDK 17 alone")
    compiled = tmp_path / "log-store.jar"

    subprocess.run([ROOT / ".ci" / "log-store", compiled], check=True)

    assert content(compiled) == content(JAR)


def content(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as file:
        return {name: file.read(name) for name in file.namelist()}
