"""The (application id, version) pair that a session sets for its writes.

See the Delta protocol, "Transaction Identifiers". Delta reads it from the session's configuration
for every DML statement; a pair given to the merge itself comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLICATION_ID = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"
AUTO_RESET = "spark.databricks.delta.write.txnVersion.autoReset.enabled"


def session_pair(spark: SparkSession, *, table: str) -> tuple[str, int] | None:
    """The pair in the session's configuration, or None.

    Raises:
        StatementError: Only one half of the pair is set, or the version is no number.
    """
    application, version = spark.conf.get(APPLICATION_ID, None), spark.conf.get(VERSION, None)
    if application is None and version is None:
        return None
    if application is None or version is None or not version.lstrip("-").isdigit():
        raise StatementError(
            f"{APPLICATION_ID} is {application!r} and {VERSION} is {version!r}.",
            table=table,
            hint="Set both, the version as a whole number, or neither.",
        )
    return application, int(version)


def reset_session_pair(spark: SparkSession) -> None:
    """Unset the version after its use, where the session asks for that."""
    if spark.conf.get(AUTO_RESET, "false") == "true":
        spark.conf.unset(VERSION)
