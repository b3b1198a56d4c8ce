"""Settings of Spark for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

# With it, built-in MERGE fails in tables with deletion vectors.
WITHOUT_GROUPS = {"spark.sql.retainGroupColumns": "false"}
# Settings of Spark that may change what a query means, none with its default.
SETTINGS_OF_SPARK = {
    "names and groups": {
        **WITHOUT_GROUPS,
        "spark.sql.parser.quotedRegexColumnNames": "true",
        "spark.sql.ansi.enforceReservedKeywords": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
        "spark.sql.caseSensitive": "true",
        "spark.sql.groupByOrdinal": "false",
        "spark.sql.groupByAliases": "false",
        "spark.sql.orderByOrdinal": "false",
        "spark.sql.lateralColumnAlias.enableImplicitResolution": "false",
        "spark.sql.analyzer.failAmbiguousSelfJoin": "false",
        "spark.sql.selfJoinAutoResolveAmbiguity": "false",
        "spark.sql.crossJoin.enabled": "false",
        "spark.sql.legacy.integerGroupingId": "true",
    },
    "types, casts and nulls": {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "Africa/Monrovia",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        "spark.sql.jsonGenerator.ignoreNullFields": "false",
        "spark.sql.datetime.java8API.enabled": "true",
        "spark.sql.optimizeNullAwareAntiJoin": "false",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
        "spark.sql.parser.escapedStringLiterals": "true",
        **dict.fromkeys(
            (
                "spark.sql.legacy.allowNegativeScaleOfDecimal",
                "spark.sql.legacy.castComplexTypesToString.enabled",
                "spark.sql.legacy.charVarcharAsString",
                "spark.sql.legacy.createEmptyCollectionUsingStringType",
                "spark.sql.legacy.exponentLiteralAsDecimal.enabled",
                "spark.sql.legacy.inSubqueryNullability",
                "spark.sql.legacy.interval.enabled",
                "spark.sql.legacy.nullInEmptyListBehavior",
                "spark.sql.legacy.sizeOfNull",
            ),
            "true",
        ),
        "spark.sql.legacy.followThreeValuedLogicInArrayExists": "false",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
    },
    "files and Arrow": {
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.sql.execution.arrow.compression.codec": "zstd",
        "spark.sql.execution.pyspark.binaryAsBytes": "false",
        "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
        "spark.sql.parquet.mergeSchema": "true",
        "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.databricks.delta.deletionVectors.useMetadataRowIndex": "false",
    },
}


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set these settings of the session, and restore the earlier values afterwards."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
