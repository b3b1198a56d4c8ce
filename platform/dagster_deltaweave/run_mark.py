"""Marks commits with the Dagster run that made them, in their user metadata.

What an IO manager or upkeep commits has the run's id alone: it is a commit to the table of an asset
that it knows. Whatever else a run's session commits, as its assets' own code does, may be a commit
to any table, so its mark names the runs that have the session: runs of one process share it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

RUN_ID = "dagster/run_id"
RUNS_OF_SESSION = "dagster/runs_of_session"

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_RUNS = "spark.dagster.runsOfSession"
"""The runs that have the session, one for each of their resources; a setting ends with it."""

_lock = threading.Lock()


@contextmanager
def mark_commits_with_run(spark: SparkSession, run_id: str) -> Iterator[None]:
    """Record the run's id in the session's commits in the block, unless the user sets metadata.

    Args:
        spark: The session; its setting is restored afterwards.
        run_id: The id of the Dagster run.
    """
    with _lock:
        before = spark.conf.get(_USER_METADATA, None)
        marks = not before or bool(session_runs_in(before))
        if marks:
            spark.conf.set(_USER_METADATA, json.dumps({RUN_ID: run_id}))
    try:
        yield
    finally:
        if marks:
            try:
                with _lock:
                    _mark(spark, _runs(spark))
            except Exception:  # the session is gone, but its commits stand
                _logger.warning("Spark's setting %s stays", _USER_METADATA, exc_info=True)


def mark_session(spark: SparkSession, run_id: str) -> None:
    """Let all that the session commits name the run, unless the user set metadata."""
    with _lock:
        _have_runs(spark, [*_runs(spark), run_id])


def unmark_session(spark: SparkSession, run_id: str) -> None:
    """Take back one `mark_session` of the run."""
    with _lock:
        runs = _runs(spark)
        if run_id in runs:
            runs.remove(run_id)
            _have_runs(spark, runs)


def run_id_in(user_metadata: str | None) -> str | None:
    """Return the run whose IO manager or upkeep made a commit; None if none did."""
    run_id = _parsed(user_metadata).get(RUN_ID)
    return run_id if isinstance(run_id, str) else None


def session_runs_in(user_metadata: str | None) -> list[str]:
    """Return the runs, one of which made a commit by code outside of IO manager and upkeep."""
    runs = _parsed(user_metadata).get(RUNS_OF_SESSION)
    return [str(each) for each in runs] if isinstance(runs, list) else []


def _have_runs(spark: SparkSession, runs: list[str]) -> None:
    spark.conf.set(_RUNS, ",".join(runs))
    before = spark.conf.get(_USER_METADATA, None)
    if not before or session_runs_in(before):
        _mark(spark, runs)


def _mark(spark: SparkSession, runs: list[str]) -> None:
    if runs:
        spark.conf.set(_USER_METADATA, json.dumps({RUNS_OF_SESSION: list(dict.fromkeys(runs))}))
    else:
        spark.conf.unset(_USER_METADATA)


def _runs(spark: SparkSession) -> list[str]:
    return [each for each in (spark.conf.get(_RUNS, None) or "").split(",") if each]


def _parsed(user_metadata: str | None) -> dict[str, Any]:
    try:
        mark = json.loads(user_metadata) if user_metadata else {}
    except ValueError:
        return {}
    return mark if isinstance(mark, dict) else {}
