"""The error of a merge in which several source rows match a target row."""

from __future__ import annotations

from pyspark.sql import functions as F

from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import delta_message, grouped
from deltaweave.delta.log import FileList
from deltaweave.delta.scan import target_plan
from deltaweave.engine import limits
from deltaweave.engine.columns import MATCHES, TARGET_ROW_ID
from deltaweave.engine.source import PreparedSource
from deltaweave.errors import AmbiguousMatchError
from deltaweave.identifiers import back_quoted


def ambiguous_match(
    transaction: Transaction, candidates: FileList, source: PreparedSource
) -> AmbiguousMatchError:
    """Build Delta's error, with some of the target rows that match several source rows."""
    merge = transaction.merge
    shown = merge.condition_columns()
    target = target_plan(transaction, candidates, shown, row_column=TARGET_ROW_ID)
    labels = [f"_key_{i}_" for i in range(len(shown))]
    pairs = target.join(source.for_join(), merge.condition, "inner").select(
        TARGET_ROW_ID,
        *[target[back_quoted(name)].alias(x) for name, x in zip(shown, labels, strict=True)],
    )
    shown_of_row = [F.count(F.lit(1)).alias(MATCHES), *[F.first(x).alias(x) for x in labels]]
    counted = grouped(pairs, [TARGET_ROW_ID], shown_of_row)
    repeated = counted.filter(F.col(MATCHES) > 1).limit(limits.MAX_SHOWN_AMBIGUOUS_ROWS)
    try:
        found = repeated.collect()
    except (OverflowError, ValueError):  # dates and times of years that Python does not have
        found = repeated.select(*[F.col(x).cast("string") for x in labels], MATCHES).collect()
    keys = [
        {**{name: row[x] for name, x in zip(shown, labels, strict=True)}, "matches": row[MATCHES]}
        for row in found
    ]
    message = delta_message(
        merge.spark, "multipleSourceRowMatchingTargetRowInMergeException", with_session=True
    )
    return AmbiguousMatchError(
        message.text,
        keys,
        table=merge.table,
        version=transaction.version,
        error_class=message.error_class,
        sql_state=message.sql_state,
    )
