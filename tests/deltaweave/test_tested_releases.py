"""Which pairs of Spark and Delta run, and what is said of the others."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from deltaweave import _session, errors
from deltaweave._session import TESTED, check_jar, check_pair, delta_package
from deltaweave.delta.jvm import gateway, running_releases


@pytest.mark.parametrize(
    ("spark_release", "delta_release"),
    [
        ("4.2.0", "4.3.1"),  # Spark's release is tested, but not with this Delta
        ("4.0.5", "4.1.0"),
        ("4.1.1", "4.3.1"),
        ("3.5.9", "3.3.3"),
        ("4.3.0", "4.4.0"),  # newer than any
        ("4.2.0", "none"),  # a session without Delta's classes
        ("4.2.0-amzn-0", "4.4.0"),  # a vendor's build
        ("4.2.0-preview3", "4.4.0"),
        ("4.2.0", "4.4.0-SNAPSHOT"),
    ],
)
def test_another_pair_is_refused_with_the_table_of_pairs(
    spark_release: str, delta_release: str
) -> None:
    with pytest.raises(errors.UnsupportedVersionError) as refusal:
        check_pair(spark_release, delta_release)
    message = str(refusal.value)
    assert f"Spark {spark_release} with Delta {delta_release}" in message  # what runs
    for pair in TESTED:
        assert delta_package(*pair) in message  # what was tested
    assert _session.ALLOW_UNTESTED in message  # what to do


def test_another_pair_runs_with_the_override_and_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(_session.ALLOW_UNTESTED, "1")
    check_pair("4.3.0", "4.4.0")
    assert "Spark 4.3.0 with Delta 4.4.0" in caplog.text


def test_the_override_does_not_help_a_session_without_delta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(_session.ALLOW_UNTESTED, "1")
    with pytest.raises(errors.UnsupportedVersionError):
        check_pair("4.2.0", "none")


@pytest.mark.parametrize(("spark_release", "delta_release"), TESTED)
def test_a_tested_pair_runs_without_a_warning(
    spark_release: str, delta_release: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_pair(spark_release, delta_release)
    assert not caplog.text


def test_another_patch_release_of_a_tested_pair_runs_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_pair("4.2.1", "4.4.1")
    assert "other patch releases" in caplog.text


def test_a_session_of_an_untested_pair_is_refused_before_it_is_used(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_session, "TESTED", (("9.0.0", "9.0.0"),))
    monkeypatch.setattr(gateway, "NAMES", {})
    with pytest.raises(errors.UnsupportedVersionError, match=r"Spark 9\.0\.0 with Delta 9\.0\.0"):
        gateway.Jvm.of(spark)


def test_the_releases_of_the_session_are_tested(spark: SparkSession) -> None:
    assert running_releases(spark) in TESTED


@pytest.mark.parametrize(
    ("jar", "is_right"),
    [
        ("file:/ivy/io.delta_delta-spark_4.1_2.13-4.4.0.jar", True),
        ("file:/ivy/io.delta_delta-spark_4.2_2.13-4.4.0.jar", False),
        ("file:/delta-spark_4.2_2.13/delta-spark_2.13-4.0.1.jar", True),  # says nothing
        ("", True),
    ],
)
def test_a_jar_that_was_built_for_another_spark_is_refused(jar: str, is_right: bool) -> None:
    if is_right:
        check_jar("4.1.4", jar)
        return
    with pytest.raises(errors.UnsupportedVersionError, match=r"built for Spark 4\.2") as refused:
        check_jar("4.1.4", jar)
    assert "delta-spark_4.1_2.13" in str(refused.value)


def test_the_jar_of_a_session_is_found(spark: SparkSession) -> None:
    _, package, release = delta_package(*running_releases(spark)).split(":")
    assert gateway.delta_jar(gateway.Jvm.of(spark)).endswith(f"{package}-{release}.jar")
