"""Statements that Delta's own MERGE gets wrong, by their cause in Delta 4.4.

`fallback="builtin"` must not run them. Whether a statement goes wrong often depends on rows; here
the clauses, the ON condition and the table decide, so that no row has to be read. In doubt, a
statement counts as one that may go wrong. The causes in full: docs/explanation/delta-merge-defects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.types import TimestampType

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import TableMetadata, latest
from deltaweave.delta.statement.analyzer import analyzed
from deltaweave.delta.statement.lost_days import may_lose_days, names_lost_days
from deltaweave.delta.statement.parsed import ParsedMerge
from deltaweave.errors import BuiltinDefect, DeltaweaveError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    with jvm_.translated(parsed.table):
        if merge.has_other_columns:
            return ()
        return tuple(defect for may_meet, defect in _DEFECTS if may_meet(merge))


@dataclass(frozen=True)
class _Merge:
    """What decides about a statement: Delta's resolved node, and the table that it names."""

    spark: SparkSession
    node: JavaObject

    @cached_property
    def matched(self) -> list[JavaObject]:
        return list(jvm_.iterate(self.node.matchedClauses()))

    @cached_property
    def inserts(self) -> list[JavaObject]:
        return list(jvm_.iterate(self.node.notMatchedClauses()))

    @cached_property
    def by_source(self) -> list[JavaObject]:
        return list(jvm_.iterate(self.node.notMatchedBySourceClauses()))

    @cached_property
    def metadata(self) -> TableMetadata:
        return TableMetadata.of(self.spark, self.node.targetFileIndex().metadata())

    @property
    def has_other_columns(self) -> bool:
        """Whether the table's number of columns changed since a `DeltaTable` was made."""
        newest = latest(self.spark, self.node.targetFileIndex().deltaLog()).metadata.schema
        return bool(self.node.target().schema().length() != len(newest))

    @cached_property
    def writes_vectors(self) -> bool:
        """Whether Delta marks changed rows, instead of rewriting files."""
        commands = jvm_.jvm(self.spark).org.apache.spark.sql.delta.commands
        index = self.node.targetFileIndex()
        return jvm_.is_on(self.spark, _WRITE_VECTORS, otherwise=True) and bool(
            jvm_.singleton(commands, "DeletionVectorUtils").deletionVectorsWritable(
                index.protocol(), index.metadata()
            )
        )

    @cached_property
    def may_match_without(self) -> tuple[bool, bool]:
        """Whether ON and a WHEN MATCHED condition may hold of nulls for the source, the target.

        Spark's optimizer decides, as it does when it turns an outer join into an inner one.
        """
        catalyst = jvm_.jvm(self.spark).org.apache.spark.sql.catalyst
        logical, expressions = catalyst.plans.logical, catalyst.expressions
        condition = self.node.condition()
        if all(map(_condition, self.matched)):
            any_clause = _condition(self.matched[0])
            for clause in self.matched[1:]:
                any_clause = expressions.Or(any_clause, _condition(clause))
            both = expressions.And(condition, any_clause)
        else:
            both = condition
        joined = logical.Join(
            self.node.source(),
            self.node.target(),
            jvm_.singleton(catalyst.plans, "FullOuter"),
            jvm_.option(jvm_.jvm(self.spark), condition),
            logical.JoinHint.NONE(),
        )
        rule = jvm_.singleton(catalyst.optimizer, "EliminateOuterJoin")
        kind = rule.apply(logical.Filter(both, joined)).child().joinType().toString()
        return kind not in ("Inner", "LeftOuter"), kind not in ("Inner", "RightOuter")


def _condition(clause: JavaObject) -> JavaObject | None:
    condition = clause.condition()
    return condition.get() if condition.isDefined() else None


def _drops_rows_as_repeated(merge: _Merge) -> bool:
    """Detect deduplicateCDFDeletes of Delta, where numbers of source and target rows collide."""
    deletes_all = [(c.clauseType(), _condition(c)) for c in merge.matched] == [("Delete", None)]
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
    without_source, without_target = merge.may_match_without
    return (_are_conditional(merge.by_source) and without_source) or (
        _are_conditional(merge.inserts) and without_target
    )


def _are_conditional(clauses: Sequence[JavaObject]) -> bool:
    return bool(clauses) and all(map(_condition, clauses))


def _overlooks_repeated_matches(merge: _Merge) -> bool:
    """Detect findTouchedFiles of Delta, where a null condition makes the count of a match null.

    It counts by all conditions with OR between them, which is null if one is null and none is true.
    """
    if merge.inserts or merge.by_source:
        return False
    conditions = [_condition(clause) for clause in merge.matched]
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
    rules = jvm_.zone_rules(merge.spark, merge.spark._jsparkSession)
    return any(by_time) and not rules.isFixedOffset()


def _overlooks_days(merge: _Merge) -> bool:
    """Detect translateFilter of Spark, whose java.sql.Date lacks ten days (`lost_days`)."""
    has_dates = any(may_lose_days(field.dataType) for field in merge.metadata.schema)
    return has_dates and names_lost_days(merge.spark, merge.node)


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
            "source names a day of October 1582, and Spark's filters on Parquet files lack 5 to "
            "14 October 1582",
            "Set spark.sql.datetime.java8API.enabled=true in the session.",
        ),
    ),
)
