"""Commits to S3 exclude those of other drivers, whatever a store answers."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave.delta.jvm import jars_with
from deltaweave.log_store import CLASS, JAR, use_log_store, warn_of_other_drivers
from tests.support.programs import outcome_of

ROOT = Path(__file__).parents[2]
S3A = "spark.delta.logStore.s3a.impl"
CONFLICT = "java.nio.file.FileAlreadyExistsException"
UNKNOWN = f"{CLASS}$CommitStateUnknownException"


def java_of_compiler() -> str:
    if shutil.which("javac") is None:
        return "none"
    told = subprocess.run(["javac", "-version"], capture_output=True, text=True)
    [release] = re.findall(r"javac (\d+)", told.stdout + told.stderr)
    return str(release)


@pytest.mark.skipif(java_of_compiler() != "17", reason="other compilers write other classes")
def test_the_jar_of_the_log_store_is_what_its_source_compiles_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    [delta] = jars_with(spark, "io.delta.storage.LogStore")
    command = [sys.executable, ".ci/log-store", tmp_path / "jar", delta.rpartition("file:")[2]]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / "jar").read_bytes() == JAR.read_bytes(), "run .ci/log-store"


def test_sessions_that_deltaweave_starts_have_the_log_store(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get(S3A) == CLASS
    assert jars_with(spark, CLASS) == [f"jar:file:{JAR}"]


class Conf(dict[str, str]):
    """The part of Spark's configuration that is asked."""

    def contains(self, key: str) -> bool:
        return key in self


def session_with(conf: Conf) -> Any:
    """A session that has nothing but its configuration."""

    class Context:
        _jsc = SimpleNamespace(sc=lambda: SimpleNamespace(conf=lambda: conf))

        def getConf(self) -> Conf:  # noqa: N802 - Spark's name
            return conf

    return SimpleNamespace(sparkContext=Context())


@pytest.mark.parametrize("key", [S3A, "spark.delta.logStore.class"])
def test_a_log_store_that_the_settings_name_stays(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    conf = Conf({key: "io.delta.storage.S3DynamoDBLogStore"})
    spark = session_with(conf)
    use_log_store(spark)
    warn_of_other_drivers(spark, "s3a://lake/orders")
    assert conf == {key: "io.delta.storage.S3DynamoDBLogStore"}
    assert caplog.messages == []


def test_a_session_of_the_users_own_is_warned_once_on_s3(caplog: pytest.LogCaptureFixture) -> None:
    spark = session_with(Conf())
    with caplog.at_level(logging.WARNING):
        for location in ("file:/lake/orders", "abfss://lake/orders"):
            warn_of_other_drivers(spark, location)
        assert caplog.messages == []
        for location in ("s3a://lake/orders", "s3a://lake/orders", "s3a://lake/items"):
            warn_of_other_drivers(spark, location)
    [warning] = caplog.messages
    assert "can be LOST" in warning
    assert f"spark.jars={JAR} and {S3A}={CLASS}" in warning


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    """What the program did, which runs once for all."""
    outcome = outcome_of("tests.support.store_commits", timeout=600)
    return outcome.found | {"printed": outcome.printed}


@pytest.mark.minutes
@pytest.mark.parametrize(
    "bucket", ["plain", "lost", "always-lost", "conflicting", "parts", "ignoring", "unknowing"]
)
def test_of_two_commits_of_a_version_the_first_stands(outcome: dict[str, Any], bucket: str) -> None:
    """Answers to the first are lost once or always, refused as concurrent, or lost at the end of
    an upload in parts; or the store does not know the condition, and one driver is excluded."""
    found = outcome["by_buckets"][bucket]
    assert found == {"outcomes": ["written", CONFLICT], "is_first": True}


@pytest.mark.minutes
def test_a_commit_asks_the_store_once(outcome: dict[str, Any]) -> None:
    """The second of them is refused, and looks whether the file is its own."""
    requests = {each: n for each, n in outcome["requests"].items() if each.startswith("plain")}
    assert requests == {"plain PUT": 2, "plain HEAD": 1, "plain GET": 1}


@pytest.mark.minutes
def test_a_commit_without_permission_is_refused_as_such(outcome: dict[str, Any]) -> None:
    denied = "java.nio.file.AccessDeniedException"
    assert outcome["by_buckets"]["denied"]["outcomes"] == [denied, denied]


@pytest.mark.minutes
def test_a_commit_that_a_store_never_answers_is_of_unknown_state(outcome: dict[str, Any]) -> None:
    assert outcome["by_buckets"]["silent"]["outcomes"] == [UNKNOWN, UNKNOWN]
    assert outcome["merges"]["silent, merge"] == "CommitStateUnknownError"
    assert outcome["merges"]["silent, append"] == "unknown"
    assert outcome["merges"]["silent, rows"] == []


@pytest.mark.minutes
def test_merges_and_sparks_writer_commit_though_an_answer_is_lost(outcome: dict[str, Any]) -> None:
    done = outcome["merges"]
    assert (done["lost, merge"], done["lost, append"]) == ("committed", "committed")
    assert done["lost, rows"] == [[1, 1], [1, 1]]


@pytest.mark.minutes
@pytest.mark.parametrize("bucket", ["ignoring", "unknowing"])
def test_a_store_without_the_condition_is_warned_of_once(
    outcome: dict[str, Any], bucket: str
) -> None:
    [warning] = re.findall(rf".*s3a://{bucket}: the store .*LOSE COMMITS.*", outcome["printed"])
    assert "spark.hadoop.fs.deltaweave.commit.requireConditionalPut=true" in warning


@pytest.mark.minutes
def test_a_store_without_the_condition_is_an_error_if_required(outcome: dict[str, Any]) -> None:
    assert outcome["required"]["outcome"] == "java.io.IOException"
    assert not any(each.startswith("required/") for each in outcome["required"]["written"])


@pytest.mark.minutes
def test_two_drivers_on_a_store_that_is_slow_in_commits_lose_none() -> None:
    """By Delta's own log store, 2 of 24 were lost."""
    from tests.support.rival_drivers import Trouble, compete

    trouble = Trouble(commit_seconds=1, lost=0.2, throttled=0.02, seed=5)
    found = compete(drivers=2, commits=6, trouble=trouble, listed_after=0.3)
    assert (found.lost, found.doubled, found.unreported) == ([], [], [])
    assert (found.unknown, found.failed) == ([], [])
    assert len(found.reported) == 12
