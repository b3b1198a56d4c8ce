"""How changes are brought into a base: by merging them, or by writing what they touch anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, TimestampType

from deltaweave.changes.base_and_batches import merged_batch, merged_mark
from deltaweave.changes.merged_view import MergedView
from deltaweave.choices import check_choice
from deltaweave.delta.snapshot import TableSnapshot
from deltaweave.errors import CommitConflictError, StatementError
from deltaweave.identifiers import quoted
from deltaweave.table import Table

Strategy = Literal["merge", "overwrite", "replace_where", "auto"]

# Above this share of rows that change, a table with deletion vectors is written anew.
_MARKED_SHARE = 0.3
# Above this expected share of files in which a row changes, one without them is.
_REWRITTEN_SHARE = 0.5


@dataclass(frozen=True)
class Rematerialized:
    """What a rematerialization did.

    Attributes:
        version: The version of the base that it committed.
        batch: The newest batch that is in it.
        strategy: How it was done.
    """

    version: int
    batch: int
    strategy: str


def check_strategy(strategy: str, base: Table) -> None:
    """Raise a StatementError where a strategy is not known."""
    known = get_args(Strategy)
    check_choice("strategy", strategy, known, table=base.path_or_name, operation="rematerializing")


def best_strategy(base: Table, num_changes: int) -> Strategy:
    """By the share of rows that change, or of the files in which one is expected to.

    Args:
        base: The table.
        num_changes: How many events there are, at most one for each row, spread evenly.
    """
    layout = base.layout(small_file_bytes=0)
    if not layout.rows:
        return "overwrite"
    if base.setting("delta.enableDeletionVectors") == "true":
        return "merge" if num_changes <= _MARKED_SHARE * layout.rows else "overwrite"
    untouched = (1 - 1 / max(layout.files, 1)) ** num_changes
    if 1 - untouched <= _REWRITTEN_SHARE:
        return "merge"
    return "replace_where" if base.partition_columns() else "overwrite"


def touched_partitions(base: Table, view: MergedView) -> str:
    """The SQL condition of the partitions in which a row changes, before or after.

    Raises:
        StatementError: The base has no partitions.
    """
    columns = base.partition_columns()
    if not columns:
        raise StatementError(
            "the base has no partitions to replace.",
            table=base.path_or_name,
            operation="rematerializing",
            hint="Use merge or overwrite.",
        )
    keys = list(view.shape.keys)
    changed = view.changes.select(*map(quoted, keys))
    before = view.base.join(changed, keys, "left_semi").select(*map(quoted, columns))
    rows = view.rows("left_join_anti_join")
    after = rows.join(changed, keys, "left_semi").select(*map(quoted, columns))
    touched = before.unionByName(after).distinct()
    of_each = [_equals(name, touched.schema[name].dataType) for name in columns]
    conditions = touched.select(F.concat_ws(" AND ", *of_each).alias("condition"))
    # As many as partitions, which a log lists anyway.
    return " OR ".join(f"({row.condition})" for row in conditions.collect()) or "false"


def _equals(name: str, data_type: DataType) -> Column:
    """The SQL condition of the rows with a row's value in this column, as text.

    Spark makes the text: Python has no years beyond 9999, and times in a zone of its own. Times go
    by their microseconds: a text in a zone with daylight saving means two of them, once a year.
    """
    column = F.col(quoted(name))
    if isinstance(data_type, TimestampType):
        micros = F.unix_micros(column).cast("string")
        value = F.concat(F.lit("timestamp_micros("), micros, F.lit(")"))
    elif isinstance(data_type, BinaryType):
        value = F.concat(F.lit("X'"), F.hex(column), F.lit("'"))
    else:
        escaped = F.replace(column.cast("string"), F.lit("\\"), F.lit("\\\\"))
        escaped = F.replace(escaped, F.lit("'"), F.lit("\\'"))
        # Spark would put a setting's value there (`identifiers.literal`).
        escaped = F.replace(escaped, F.lit("${"), F.lit("\\u0024{"))
        end = F.lit(f"' AS {data_type.simpleString()})")
        value = F.concat(F.lit("CAST('"), escaped, end)
    is_equal = F.concat(F.lit(f"{quoted(name)} = "), value)
    return F.coalesce(is_equal, F.lit(f"{quoted(name)} IS NULL"))


def write_anew(
    base: Table, view: MergedView, read: TableSnapshot, until: int, strategy: str
) -> int | None:
    """Write the rows of a view of a version of the base, or of the partitions that it changes.

    Args:
        base: The base.
        view: The view of that version and of the batches up to `until`.
        read: The version.
        until: The newest batch in the view.
        strategy: `overwrite` or `replace_where`.

    Returns:
        The version that it made; None where another one brought the batches in meanwhile.

    Raises:
        CommitConflictError: Another writer changed the base since that version.
    """
    predicate, columns = None, view.base.columns
    if strategy == "replace_where":
        predicate = touched_partitions(base, view)
        view = replace(view, base=view.base.where(predicate))
    try:
        written = base.write(
            view.rows(view.best_for_all).select(*map(quoted, columns)),
            "overwrite",
            replace_where=predicate,
            applied={merged_mark(read.id): until},
            computed_from=read.version,
        )
    except CommitConflictError:
        if merged_batch(base) >= until:
            return None
        raise
    return written.version
