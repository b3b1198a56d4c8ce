"""The Spark session of a run, as a Dagster resource, and the run's id in the session's commits.

A commit by an IO manager or upkeep names its own run alone. Runs of one process share the session,
so every other commit of the session names all of them.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from dagster_spark.utils import flatten_dict
from pydantic import Field, PrivateAttr, field_validator
from pyspark import SparkContext
from pyspark.sql import SparkSession

import deltaweave
from deltaweave._session import secret_keys
from deltaweave.errors import NOTHING_DONE, StatementError

if TYPE_CHECKING:
    from deltaweave.warm_driver.client import Attachment

_logger = logging.getLogger(__name__)


class SparkResource(LazyPySparkResource):
    """dagster-pyspark's lazy resource, with a session that supports Delta.

    Loading definitions starts no JVM: the session starts when `session` is first used. All steps in
    one process share it, so jobs that use it should run on the in-process executor.

    With `warm=True`, the first run starts a driver that stays alive. Later runs of this machine's
    code location attach to it in about a second, each with its own session. If a run cannot attach,
    the log says why, and the run starts its own driver.

    All commits of a run's session name the run in their user metadata, unless
    `spark.databricks.delta.commitInfo.userMetadata` is set. Runs at one time in one process share
    the session, so these commits name all of them.

    With `spark.deltaweave.enabled` in its configuration, the MERGE statements of assets' own code
    run on the engine (`deltaweave.enable`).

    >>> spark = SparkResource(spark_config={"spark.driver.memory": "4g"}, warm=True)
    """

    spark_config: dict[str, Any] = Field(
        default={},
        description=(
            "Spark configuration on top of deltaweave's own, flat ('spark.driver.memory': '4g') "
            "or nested as dagster-spark takes it. Package lists and extensions are added to "
            "Delta's; every other key replaces ours. Dagster shows it: secrets are refused."
        ),
    )
    warm: bool = Field(
        default=False,
        description=(
            "Whether runs share a driver that stays between them. Not for run launchers that "
            "start a container for each run: the driver would end with it."
        ),
    )
    idle_timeout_minutes: float = Field(
        default=15,
        gt=0,
        description="For how long a warm driver is kept when no run uses it.",
    )

    _run_name: str = PrivateAttr(default="session")
    _run_id: str | None = PrivateAttr(default=None)
    _log: logging.Logger = PrivateAttr(default=_logger)
    _attachment: Attachment | None = PrivateAttr(default=None)

    @field_validator("spark_config")
    @classmethod
    def _holds_no_secrets(cls, spark_config: dict[str, Any]) -> dict[str, Any]:
        secret = secret_keys(dict(_flat(spark_config)))
        if secret:
            raise StatementError(
                f"spark_config holds secrets ({', '.join(secret)}), which Dagster's UI would show.",
                operation="configuration",
                state=NOTHING_DONE,
                hint="Leave them out. Set them in the environment of the JVM, or in the "
                "spark-defaults.conf of SPARK_CONF_DIR. Change them where they were shown.",
            )
        return spark_config

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Keep the run's id and log, for messages about its driver and metadata of its commits."""
        if context.run is not None:
            self._run_id = context.run.run_id
            self._run_name = f"run {context.run.run_id[:8]}"
        if context.log:
            self._log = context.log

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Remove the run's id from the session, which other runs of the process may get."""
        if self._spark_session is None or self._run_id is None:
            return
        try:
            untag_session(self._spark_session, self._run_id)
        except Exception:  # the session ended
            _logger.debug("the session is no longer there", exc_info=True)

    @property
    def session(self) -> SparkSession:
        """The Delta-enabled session; the first use in a process attaches to or starts the JVM."""
        session: SparkSession = self.spark_session
        return session

    def _init_session(self) -> None:
        from deltaweave.session_merges import is_enabled  # imports the engine

        if self._attachment is not None and not self._attachment.is_alive():
            self._spark_session = None
        if self._spark_session is None:
            with self._logging_start():
                self._attachment = self._attach() if self.warm else None
                session = (
                    self._attachment.session
                    if self._attachment
                    else deltaweave.local_session(**self._spark_conf())
                )
            if is_enabled(session):
                deltaweave.enable(session)
            self._spark_session = session
            if self._run_id is not None:
                tag_session(session, self._run_id)

    @contextmanager
    def _logging_start(self) -> Iterator[None]:
        """Log that Spark starts, and how long that took, unless this process has Spark already."""
        if SparkContext._active_spark_context is not None:
            yield
            return
        self._log.info(
            "Attaching to the warm Spark driver, which starts if there is none."
            if self.warm
            else "Starting a Spark driver. The first time, it downloads Delta's jars."
        )
        began = time.monotonic()
        yield
        self._log.info(f"Spark is ready after {time.monotonic() - began:.1f} s.")

    def _attach(self) -> Attachment | None:
        from deltaweave.warm_driver.client import attach

        try:
            return attach(
                self._spark_conf(),
                name=self._run_name,
                idle_seconds=self.idle_timeout_minutes * 60,
            )
        except Exception as problem:  # for any reason: the run does not need the warm driver
            self._log.warning(
                f"Could not attach to a warm Spark driver: {problem} "
                "This process uses a driver of its own."
            )
            return None

    def _spark_conf(self) -> dict[str, str]:
        settings = _flat(_with_environment(self.spark_config))
        # Spark spells booleans in lower case.
        return {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in settings}


def _with_environment(given: Any) -> Any:
    """Replace variables, which Dagster leaves as `{"env": name}`, by their values."""
    if not isinstance(given, Mapping):
        return given
    if given.keys() != {"env"}:
        return {key: _with_environment(value) for key, value in given.items()}
    name = str(given["env"])
    value = os.environ.get(name)
    if value is None:
        raise StatementError(
            f"spark_config names the environment variable {name}, which is not set.",
            operation="configuration",
            state=NOTHING_DONE,
            hint=f"Set {name}, or leave EnvVar('{name}') out of the configuration.",
        )
    return value


def _flat(spark_config: dict[str, Any]) -> list[tuple[str, object]]:
    settings: list[tuple[str, object]] = flatten_dict(spark_config)  # type: ignore[no-untyped-call]
    return settings


RUN_ID = "dagster/run_id"
RUNS_OF_SESSION = "dagster/runs_of_session"

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_SETTING_OF_RUNS = "spark.dagster.runsOfSession"
"""The runs that have the session, one for each of their resources; a setting ends with it."""

_lock = threading.Lock()


@contextmanager
def tag_commits_with_run(spark: SparkSession, run_id: str) -> Iterator[None]:
    """Record the run's id in the session's commits in the block, unless the user sets metadata."""
    with _lock:
        before = spark.conf.get(_USER_METADATA, None)
        is_tagged = not before or bool(session_runs_in(before))
        if is_tagged:
            spark.conf.set(_USER_METADATA, json.dumps({RUN_ID: run_id}))
    try:
        yield
    finally:
        if is_tagged:
            try:
                with _lock:
                    _write_runs(spark, _tagged_runs(spark))
            except Exception:  # the session ended, but its commits stand
                _logger.warning("Spark's setting %s stays", _USER_METADATA, exc_info=True)


def tag_session(spark: SparkSession, run_id: str) -> None:
    """Let all that the session commits name the run, unless the user set metadata."""
    with _lock:
        _set_runs(spark, [*_tagged_runs(spark), run_id])


def untag_session(spark: SparkSession, run_id: str) -> None:
    """Undo one `tag_session` of the run."""
    with _lock:
        runs = _tagged_runs(spark)
        if run_id in runs:
            runs.remove(run_id)
            _set_runs(spark, runs)


def run_id_in(user_metadata: str | None) -> str | None:
    """Return the run whose IO manager or upkeep made a commit; None if none did."""
    run_id = _parsed_metadata(user_metadata).get(RUN_ID)
    return run_id if isinstance(run_id, str) else None


def session_runs_in(user_metadata: str | None) -> list[str]:
    """Return the runs, one of which made a commit by code outside of IO manager and upkeep."""
    runs = _parsed_metadata(user_metadata).get(RUNS_OF_SESSION)
    return [str(each) for each in runs] if isinstance(runs, list) else []


def _set_runs(spark: SparkSession, runs: list[str]) -> None:
    spark.conf.set(_SETTING_OF_RUNS, ",".join(runs))
    before = spark.conf.get(_USER_METADATA, None)
    if not before or session_runs_in(before):
        _write_runs(spark, runs)


def _write_runs(spark: SparkSession, runs: list[str]) -> None:
    if runs:
        spark.conf.set(_USER_METADATA, json.dumps({RUNS_OF_SESSION: list(dict.fromkeys(runs))}))
    else:
        spark.conf.unset(_USER_METADATA)


def _tagged_runs(spark: SparkSession) -> list[str]:
    return [each for each in (spark.conf.get(_SETTING_OF_RUNS, None) or "").split(",") if each]


def _parsed_metadata(user_metadata: str | None) -> dict[str, Any]:
    try:
        tag = json.loads(user_metadata) if user_metadata else {}
    except ValueError:
        return {}
    return tag if isinstance(tag, dict) else {}
