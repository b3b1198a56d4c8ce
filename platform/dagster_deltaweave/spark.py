"""The Spark session of a run, as a Dagster resource that starts it when it is first used."""

from __future__ import annotations

from typing import Any

from dagster_pyspark import LazyPySparkResource
from dagster_spark.utils import flatten_dict
from pydantic import Field
from pyspark.sql import SparkSession

import deltaweave


class SparkResource(LazyPySparkResource):
    """dagster-pyspark's lazy resource, whose session knows Delta.

    Loading definitions starts no JVM: the session begins with the first `session`. All steps that
    one process runs share it, so jobs that use it belong on the in-process executor.

    >>> spark = SparkResource(spark_config={"spark.driver.memory": "4g"})
    """

    spark_config: dict[str, Any] = Field(
        default={},
        description=(
            "Spark configuration on top of deltaweave's own, flat ('spark.driver.memory': '4g') "
            "or nested as dagster-spark takes it. Package lists and extensions are added to "
            "Delta's; every other key replaces ours."
        ),
    )

    @property
    def session(self) -> SparkSession:
        """The Delta-enabled session; the first use in a process starts the JVM."""
        session: SparkSession = self.spark_session
        return session

    def _init_session(self) -> None:
        if self._spark_session is None:
            flat = {key: _spark_text(value) for key, value in _flat(self.spark_config)}
            self._spark_session = deltaweave.local_session(**flat)


def _flat(config: dict[str, Any]) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = flatten_dict(config)  # type: ignore[no-untyped-call]
    return pairs


def _spark_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
