"""Settings that Spark's Parquet writer follows, and why the engine may not write beside it.

Delta passes all table properties to Hadoop's configuration of the writer, where they win over those
of the session. So a table can be encrypted by its properties alone. A setting that is not known not
to matter leaves the table's files to Spark: none is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaweave.delta.commit import Transaction

# Settings of readers, of other writers and of memory. Spark itself sets the compression: by its own
# setting, which the engine follows.
_WITHOUT_MEANING = re.compile(
    r"parquet\.(?:read|filter|avro|thrift|proto|pig|hadoop|private\.read|task|strings)\..*"
    r"|parquet\.memory\.(?:pool\.ratio|min\.chunk\.size)"
    r"|parquet\.(?:compression|split\.files|enable\.summary-metadata|summary\.metadata\.level)"
    r"|parquet\.(?:read|write)\.support\.class"
    # Of Spark's readers, and what the engine follows or Delta's writer does not use.
    r"|spark\.sql\.parquet\.(?:.*[pP]ushdown.*|.*InRead|enable.*|columnarReaderBatchSize)"
    r"|spark\.sql\.parquet\.(?:recordLevelFilter\.enabled|mergeSchema|respectSummaryFiles)"
    r"|spark\.sql\.parquet\.(?:binaryAsString|int96AsTimestamp|int96TimestampConversion)"
    r"|spark\.sql\.parquet\.(?:inferTimestampNTZ\.enabled|fieldId\..*|variant\..*|.*[vV]ariant.*)"
    r"|spark\.sql\.parquet\.(?:compression\.codec|output\.committer\.class)"
)
# Settings of Spark's writer, and the values with which its files are like those of the engine.
_VALUES_ALIKE = {
    "spark.sql.parquet.outputTimestampType": r"INT96|TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": r"false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": r"CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": r".*",  # it writes no INT96
    "spark.sql.files.maxRecordsPerFile": r"0|-\d+",
    "parquet.writer.version": r"v1|PARQUET_1_0",
}
# Properties of a table that reach the writer's configuration and can mean something there. Others
# are notes of users and tools, and Delta's own, which Delta checks.
_MAY_REACH_WRITERS = re.compile(
    r"(?:parquet|spark\.sql\.parquet|hadoop|fs|io|dfs|mapred|mapreduce|delta\.parquet)\..*"
    r"|.*(?:encrypt|crypt|kms).*",
    re.IGNORECASE,
)
_OF_WRITERS = r"^(?:parquet\.|spark\.sql\.parquet\.|spark\.sql\.files\.maxRecordsPerFile$)"
_FORMAT_VERSION = {"delta.parquet.format.version": r"1\.0\.0"}
_ENCRYPTS = re.compile(r"parquet\.(?:crypto|encryption)\..*", re.IGNORECASE)


def why_written_otherwise(transaction: Transaction) -> str | None:
    """Return the setting by which only Spark writes the files that Delta would; None if none is."""
    spark, properties = transaction.merge.spark, transaction.metadata.properties
    for name in properties:
        if _MAY_REACH_WRITERS.fullmatch(name) and not _is_alike(name, properties):
            return f"the table's property {name} is one of Spark's writer"
    names = _names_in_session(transaction)
    values = {name: spark.conf.get(name, None) or "" for name in names if name in _VALUES_ALIKE}
    for name in names:
        if not _is_alike(name, values):
            return f"the setting {name} is one of Spark's writer"
    return None


def _names_in_session(transaction: Transaction) -> list[str]:
    """Return the names of the session's settings for Parquet's writer.

    Their values may be secrets, and py4j logs at DEBUG what the JVM answers.
    """
    found = transaction.hadoop_settings.getValByRegex(_OF_WRITERS).keySet()
    names = str(found.toString()).removeprefix("[").removesuffix("]").split(", ")
    return sorted(name for name in names if re.match(_OF_WRITERS, name))


def encryption_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return those properties of a table by which Parquet encrypts its files."""
    return {name: value for name, value in properties.items() if _ENCRYPTS.fullmatch(name)}


def _is_alike(name: str, values: Mapping[str, str]) -> bool:
    expected = (_VALUES_ALIKE | _FORMAT_VERSION).get(name)
    if expected is None:
        return _WITHOUT_MEANING.fullmatch(name) is not None
    return re.fullmatch(expected, values[name], re.IGNORECASE) is not None
