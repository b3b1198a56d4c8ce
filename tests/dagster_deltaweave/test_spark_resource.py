"""The Spark session of a run."""

from __future__ import annotations

from pyspark.sql import SparkSession

import deltaweave
from dagster_deltaweave import SparkResource
from deltaweave import session_merges


def test_the_session_is_enabled_where_its_configuration_says_so(spark: SparkSession) -> None:
    assert not session_merges.is_enabled(SparkResource().session)
    enabled = SparkResource(spark_config={"spark.deltaweave.enabled": True})
    try:
        # Spark hands out the session that is there, with the setting.
        assert session_merges.is_enabled(enabled.session)
        assert hasattr(SparkSession.sql, "__wrapped__")
    finally:
        deltaweave.disable(spark)
