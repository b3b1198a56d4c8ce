"""The Spark session of a run."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import EnvVar, build_resources
from pyspark.sql import SparkSession

import deltaweave
from dagster_deltaweave import SparkResource
from deltaweave import session_merges
from deltaweave.errors import StatementError


def test_the_session_is_enabled_where_its_configuration_says_so(spark: SparkSession) -> None:
    assert not session_merges.is_enabled(SparkResource().session)
    enabled = SparkResource(spark_config={"spark.deltaweave.enabled": True})
    try:
        # Spark hands out the session that is there, with the setting.
        assert session_merges.is_enabled(enabled.session)
        assert hasattr(SparkSession.sql, "__wrapped__")
    finally:
        deltaweave.disable(spark)


class StartError(Exception):
    """A session would start with this configuration."""


def configuration(spark_config: dict[str, Any]) -> dict[str, str]:
    """With which a run starts Spark."""
    with build_resources({"spark": SparkResource(spark_config=spark_config)}) as resources:
        try:
            session = resources.spark.session
        except StartError as started:
            return dict(started.args[0])
    raise AssertionError(session)


@pytest.mark.parametrize(
    "given",
    [
        {"spark.driver.memory": EnvVar("MEMORY")},
        {"spark": {"driver": {"memory": EnvVar("MEMORY")}}},
        {"spark.driver": {"memory": {"env": "MEMORY"}}},  # as in YAML
        {"spark.driver.memory": "2g"},
    ],
)
def test_the_configuration_takes_variables_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    def started(**spark_conf: str) -> None:
        raise StartError(spark_conf)

    monkeypatch.setattr(deltaweave, "local_session", started)
    monkeypatch.setenv("MEMORY", "2g")
    assert configuration(given) == {"spark.driver.memory": "2g"}
    monkeypatch.delenv("MEMORY")
    if given != {"spark.driver.memory": "2g"}:
        with pytest.raises(StatementError, match="variable MEMORY, which is not set"):
            configuration(given)
