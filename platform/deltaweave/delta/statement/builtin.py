"""Delta's own MERGE, a fallback for tables with features that the engine does not support.

Nowhere else does Delta execute a merge, and it does here only with `fallback="builtin"`. Statements
that Delta's own MERGE gets wrong, by their cause in Delta 4.4, must not run so. Whether a statement
goes wrong often depends on rows; here the clauses, the ON condition and the table decide, so that
no row has to be read. In doubt, a statement counts as one that may go wrong. The causes in full:
docs/explanation/delta-merge-defects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Row
from pyspark.sql.types import TimestampType

from deltaweave.delta.jvm import (
    LAST_COMMIT,
    JavaObject,
    Jvm,
    is_on,
    raise_hidden_interrupts,
    refuse_lenient_reads,
    reported_by,
    translated,
)
from deltaweave.delta.log import TableLog, TableMetadata, scans_of_widened_decimals
from deltaweave.delta.statement.analyzer import ParsedMerge, analyzed
from deltaweave.delta.statement.lost_days import (
    may_filter_by_decimals,
    may_lose_days,
    names_lost_days,
)
from deltaweave.errors import BuiltinDefect, DeltaweaveError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuiltinMerge:
    """The outcome of Delta's own MERGE.

    Attributes:
        version: The version of its commit; None if it committed nothing or the version is unknown.
        metrics: Its metrics, from the table's history.
        warnings: What failed after it ran.
    """

    version: int | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def run_builtin_merge(parsed: ParsedMerge, location: str) -> BuiltinMerge:
    """Run a parsed MERGE as Spark runs it.

    Args:
        parsed: The statement, as the parser or the builder made it.

    Raises:
        SettingError: Spark passes over files that it cannot read.
        DeltaweaveError: Delta's MERGE failed. The state is unknown only if the session has
            committed, or the table's history has a commit since that may be a MERGE, or cannot be
            read.
    """
    from delta.tables import DeltaTable

    spark, table = parsed.spark, parsed.table
    refuse_lenient_reads(spark, table, "MERGE")
    with translated(table):
        [newest] = DeltaTable.forPath(spark, location).history(1).collect()
    before = spark.conf.get(LAST_COMMIT, None)
    spark.conf.unset(LAST_COMMIT)
    try:
        _run(parsed, location, newest["version"])
    except Exception:
        raise
    except BaseException:
        logger.warning("%s: interrupted in Delta's own MERGE, which may have committed", table)
        raise
    finally:
        last = spark.conf.get(LAST_COMMIT, None)
        if last is None and before is not None:
            spark.conf.set(LAST_COMMIT, before)
    if last is None:
        return BuiltinMerge()  # it committed nothing
    of_session = f"the session's last commit is of version {last}"
    try:
        with raise_hidden_interrupts():
            later = merges_after(spark, location, newest["version"])
        # Others may have merged meanwhile, or the session may have committed to another table.
        own = next((commit for commit in later if str(commit["version"]) == last), None)
        if own is None:
            return _outcome_of_unknown_version(table, of_session)
        metrics = {name: int(value) for name, value in own["operationMetrics"].items()}
        return BuiltinMerge(own["version"], metrics)
    except Exception as error:
        return _outcome_of_unknown_version(table, reported_by(error), exc_info=True)
    except BaseException:
        logger.warning("%s: interrupted after Delta's own MERGE: %s", table, of_session)
        raise


def _run(parsed: ParsedMerge, location: str, read: int) -> None:
    """Run a merge; its error says whether the table's history may hold it since a version."""
    spark = parsed.spark
    try:
        with raise_hidden_interrupts():
            Jvm.of(spark).data_frame_of_plan(parsed.plan)  # a command runs when that is made
    except Exception:
        has_committed = spark.conf.get(LAST_COMMIT, None) is not None
        may_be_committed = has_committed or _may_be_committed(spark, location, read)
        with translated(parsed.table, version=read, commits=may_be_committed):
            raise


def merges_after(
    spark: SparkSession, location: str, version: int, *, or_unknown: bool = False
) -> list[Row]:
    """Return the MERGE commits after a version, or also those of no known operation."""
    from delta.tables import DeltaTable

    history = DeltaTable.forPath(spark, location).history()
    unknown = " OR operation IS NULL" if or_unknown else ""
    is_one = f"version > {version} AND (operation = 'MERGE'{unknown})"
    return history.where(is_one).collect()


def _may_be_committed(spark: SparkSession, location: str, read: int) -> bool:
    """Return whether a failed merge may be one that the table's history has since a version."""
    try:
        # Without information about commits, a later one may be any operation.
        with raise_hidden_interrupts():
            return bool(merges_after(spark, location, read, or_unknown=True))
    except Exception as error:
        logger.warning("%s: the history cannot be read: %s", location, reported_by(error))
        return True


def _outcome_of_unknown_version(table: str, why: str, *, exc_info: bool = False) -> BuiltinMerge:
    warning = f"Delta's own MERGE ran; its version is not known: {why}"
    logger.warning("%s: %s", table, warning, exc_info=exc_info)
    return BuiltinMerge(warnings=(warning,))


_DECIMALS_PUSHED = "spark.sql.parquet.filterPushdown.decimal"
_WRITE_VECTORS = "spark.databricks.delta.merge.deletionVectors.persistent"


def builtin_defects(parsed: ParsedMerge) -> tuple[BuiltinDefect, ...]:
    """Return the defects of Delta's own MERGE that this statement may meet on its table.

    A statement that Delta's own MERGE refuses before it reads a row meets none.
    """
    try:
        node = analyzed(parsed)
    except DeltaweaveError:
        return ()  # Delta's own MERGE begins with the same analysis, and writes nothing
    if node.getClass().getSimpleName() != "MergeIntoCommand":
        return ()
    merge = _Merge(parsed.spark, node)
    with translated(parsed.table):
        if merge.has_other_columns:
            return ()
        return tuple(defect for may_meet, defect in _DEFECTS if may_meet(merge))


class _MayMatch(NamedTuple):
    """Answers whether a condition may hold of nulls for the source's row, and for the target's."""

    without_source: bool
    without_target: bool


@dataclass(frozen=True)
class _Merge:
    """A statement to judge: Delta's resolved node, and the table that it names."""

    spark: SparkSession
    node: JavaObject

    @cached_property
    def matched(self) -> list[JavaObject]:
        return list(Jvm.iterate(self.node.matchedClauses()))

    @cached_property
    def inserts(self) -> list[JavaObject]:
        return list(Jvm.iterate(self.node.notMatchedClauses()))

    @cached_property
    def by_source(self) -> list[JavaObject]:
        return list(Jvm.iterate(self.node.notMatchedBySourceClauses()))

    @cached_property
    def metadata(self) -> TableMetadata:
        return TableMetadata.of(self.spark, self.node.targetFileIndex().metadata())

    @property
    def has_other_columns(self) -> bool:
        """Whether the table's number of columns changed since a `DeltaTable` was made."""
        newest = TableLog(self.spark, self.node.targetFileIndex().deltaLog()).latest()
        return bool(self.node.target().schema().length() != len(newest.metadata.schema))

    @cached_property
    def writes_vectors(self) -> bool:
        """Whether Delta marks changed rows, instead of rewriting files."""
        commands = Jvm.of(self.spark).delta.commands
        index = self.node.targetFileIndex()
        return is_on(self.spark, _WRITE_VECTORS, otherwise=True) and bool(
            Jvm.singleton(commands, "DeletionVectorUtils").deletionVectorsWritable(
                index.protocol(), index.metadata()
            )
        )

    @cached_property
    def may_match(self) -> _MayMatch:
        """Whether ON and a WHEN MATCHED condition may hold of nulls for the source, the target.

        Spark's optimizer decides, as it does when it turns an outer join into an inner one.
        """
        catalyst = Jvm.of(self.spark).catalyst
        logical, expressions = catalyst.plans.logical, catalyst.expressions
        condition = self.node.condition()
        if all(map(_condition_of, self.matched)):
            any_clause = _condition_of(self.matched[0])
            for clause in self.matched[1:]:
                any_clause = expressions.Or(any_clause, _condition_of(clause))
            both = expressions.And(condition, any_clause)
        else:
            both = condition
        joined = logical.Join(
            self.node.source(),
            self.node.target(),
            Jvm.singleton(catalyst.plans, "FullOuter"),
            Jvm.of(self.spark).option(condition),
            logical.JoinHint.NONE(),
        )
        rule = Jvm.singleton(catalyst.optimizer, "EliminateOuterJoin")
        kind = rule.apply(logical.Filter(both, joined)).child().joinType().toString()
        return _MayMatch(
            without_source=kind not in ("Inner", "LeftOuter"),
            without_target=kind not in ("Inner", "RightOuter"),
        )


def _condition_of(clause: JavaObject) -> JavaObject | None:
    condition = clause.condition()
    return condition.get() if condition.isDefined() else None


def _drops_rows_as_repeated(merge: _Merge) -> bool:
    """Detect deduplicateCDFDeletes of Delta, where numbers of source and target rows collide."""
    deletes_all = [(c.clauseType(), _condition_of(c)) for c in merge.matched] == [("Delete", None)]
    by_source_update = any(clause.clauseType() == "Update" for clause in merge.by_source)
    return (
        merge.metadata.keeps_change_feed
        and deletes_all
        and bool(merge.inserts)
        and (by_source_update or not merge.writes_vectors)
    )


def _takes_unmatched_rows_for_matched(merge: _Merge) -> bool:
    """Detect generateFilterForModifiedRows of Delta, where ON alone says which rows match."""
    if not merge.matched or not merge.writes_vectors:
        return False
    may_match = merge.may_match
    return (_are_conditional(merge.by_source) and may_match.without_source) or (
        _are_conditional(merge.inserts) and may_match.without_target
    )


def _are_conditional(clauses: Sequence[JavaObject]) -> bool:
    return bool(clauses) and all(map(_condition_of, clauses))


def _overlooks_repeated_matches(merge: _Merge) -> bool:
    """Detect findTouchedFiles of Delta, where a null condition makes the count of a match null.

    It counts by all conditions with OR between them, which is null if one is null and none is true.
    """
    if merge.inserts or merge.by_source:
        return False
    conditions = [_condition_of(clause) for clause in merge.matched]
    return all(conditions) and any(c is not None and c.nullable() for c in conditions)


def _quotes_names_wrongly(merge: _Merge) -> bool:
    """Detect packAndExplodeCDCOutput and writeFiles of Delta, which quote names wrongly."""
    names = merge.metadata.schema.names if merge.metadata.keeps_change_feed else []
    partitions = merge.metadata.partition_columns
    return any("`" in name for name in (*names, *partitions)) or any("." in p for p in partitions)


def _makes_the_table_unreadable(merge: _Merge) -> bool:
    return merge.writes_vectors and any(
        name.lower() == "_metadata" for name in merge.metadata.schema.names
    )


def _moves_rows_to_another_hour(merge: _Merge) -> bool:
    schema = merge.metadata.schema
    by_time = [
        schema[name].dataType == TimestampType() for name in merge.metadata.partition_columns
    ]
    rules = Jvm.of(merge.spark).zone_rules(merge.spark._jsparkSession)
    return any(by_time) and not rules.isFixedOffset()


def _overlooks_days(merge: _Merge) -> bool:
    """Detect translateFilter of Spark, whose java.sql.Date lacks some days (`resolved`)."""
    has_dates = any(may_lose_days(field.dataType) for field in merge.metadata.schema)
    return has_dates and names_lost_days(merge.spark, merge.node)


def _overlooks_widened_decimals(merge: _Merge) -> bool:
    """Detect ParquetFilters of Spark, where a constant overflows in the type of an older file."""
    is_pushed = is_on(merge.spark, _DECIMALS_PUSHED, otherwise=True)
    source = merge.node.source()
    return (
        is_pushed
        and bool(merge.metadata.widened_decimals or scans_of_widened_decimals(merge.spark, source))
        and may_filter_by_decimals(merge.spark, merge.node)
    )


_DEFECTS: tuple[tuple[Callable[[_Merge], bool], BuiltinDefect], ...] = (
    (
        _drops_rows_as_repeated,
        BuiltinDefect(
            "drops_rows_as_repeated",
            "it may lose rows where several source rows match one row, because WHEN MATCHED THEN "
            "DELETE stands without a condition beside WHEN NOT MATCHED, and the table has "
            "delta.enableChangeDataFeed=true",
            "Write WHEN MATCHED AND true THEN DELETE: several matches are then an error.",
        ),
    ),
    (
        _takes_unmatched_rows_for_matched,
        BuiltinDefect(
            "takes_unmatched_rows_for_matched",
            "it may fail with 'did not match any merge clause', because the ON condition can hold "
            "where a row has no match (as IS NULL and <=> do), every WHEN NOT MATCHED or every "
            "WHEN NOT MATCHED BY SOURCE clause has a condition, and the table has "
            "delta.enableDeletionVectors=true",
            f"Set {_WRITE_VECTORS}=false in the session.",
        ),
    ),
    (
        _overlooks_repeated_matches,
        BuiltinDefect(
            "overlooks_repeated_matches",
            "it may overlook that several source rows match one row, and then write the row "
            "several times, because there are WHEN MATCHED clauses alone, all of them have a "
            "condition, and one of these can be null",
            "Write each condition as coalesce(condition, false).",
        ),
    ),
    (
        _quotes_names_wrongly,
        BuiltinDefect(
            "quotes_names_wrongly",
            "it fails on a back quote in a column's name beside delta.enableChangeDataFeed=true, "
            "and on a back quote or a dot in a partition column's name",
            "Rename the column.",
        ),
    ),
    (
        _makes_the_table_unreadable,
        BuiltinDefect(
            "makes_the_table_unreadable",
            "it makes the table unreadable, because a column is named _metadata, and the table has "
            "delta.enableDeletionVectors=true",
            f"Set {_WRITE_VECTORS}=false in the session.",
        ),
    ),
    (
        _moves_rows_to_another_hour,
        BuiltinDefect(
            "moves_rows_to_another_hour",
            "it may move rows of an hour that comes twice a year to the first such hour, because "
            "a partition column is a TIMESTAMP, and the session's zone sets its clocks back",
            "Set spark.sql.session.timeZone=UTC in the session.",
        ),
    ),
    (
        _overlooks_days,
        BuiltinDefect(
            "overlooks_days",
            "it may overlook rows, and insert them a second time, because the statement or its "
            "source names a day of October 1582, or one that the JVM's time zone skipped, and "
            "Spark's filters on Parquet files lack 5 to 14 October 1582 and such days",
            "Set spark.sql.datetime.java8API.enabled=true in the session.",
        ),
    ),
    (
        _overlooks_widened_decimals,
        BuiltinDefect(
            "overlooks_widened_decimals",
            "it may overlook rows, and insert them a second time or delete them as not matched by "
            "source, because the statement or its source has a constant of type DECIMAL or a "
            "subquery, and the table, or one that the source reads, has a DECIMAL column that was "
            "widened: Spark's filters convert constants to the type of older Parquet files, where "
            "they overflow",
            f"Set {_DECIMALS_PUSHED}=false in the session.",
        ),
    ),
)
