"""How changes are brought into a base: by merging them, or by writing what they touch anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql.types import DataType

from deltaweave.changes.merged_view import MergedView
from deltaweave.errors import StatementError
from deltaweave.identifiers import literal, quoted
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
    partitions = [
        " AND ".join(_equals(name, row[name], touched.schema[name].dataType) for name in columns)
        for row in touched.collect()  # as many as partitions, which a log lists anyway
    ]
    return " OR ".join(f"({each})" for each in partitions) or "false"


def _equals(name: str, value: Any, data_type: DataType) -> str:
    if value is None:
        return f"{quoted(name)} IS NULL"
    return f"{quoted(name)} = CAST({literal(str(value))} AS {data_type.simpleString()})"
