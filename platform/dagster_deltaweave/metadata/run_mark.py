"""Marks commits with the Dagster run that made them, in their user metadata."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

RUN_ID = "dagster/run_id"

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@contextmanager
def mark_commits_with_run(spark: SparkSession, run_id: str) -> Iterator[None]:
    """Within the context, commits of the session have the run's id, unless the user set metadata.

    Args:
        spark: The session; its setting is restored afterwards.
        run_id: The id of the Dagster run.
    """
    if spark.conf.get(_USER_METADATA, None):
        yield
        return
    spark.conf.set(_USER_METADATA, json.dumps({RUN_ID: run_id}))
    try:
        yield
    finally:
        try:
            spark.conf.unset(_USER_METADATA)
        except Exception:  # the session is gone, but its commits stand
            _logger.warning("Spark's setting %s stays", _USER_METADATA, exc_info=True)


def run_id_in(user_metadata: str | None) -> str | None:
    """The id of the run that made a commit, from its user metadata; None if it has none."""
    try:
        mark = json.loads(user_metadata) if user_metadata else None
    except ValueError:
        return None
    run_id = mark.get(RUN_ID) if isinstance(mark, dict) else None
    return run_id if isinstance(run_id, str) else None
