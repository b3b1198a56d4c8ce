"""The difference between two versions of a table: touched files, or exactly changed rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from deltaweave.delta.jvm import translated
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaweave.delta.log import TableSnapshot


@dataclass(frozen=True)
class TouchedRows:
    """The rows of the data files by which two versions of a table differ.

    Sums over `added` minus sums over `removed` are the exact change of any additive aggregate
    between the two versions, whatever commits lie between.

    Attributes:
        added: Rows of the files that only `until` has.
        removed: Rows of the files that only `after` has; empty if `after` is None.
        after: The older version, or None for the state before the first.
        until: The newer version.
        added_files: How many files `added` reads.
        removed_files: How many files `removed` reads.
        table_id: Delta's id of the table; a new table in its place has another id.
    """

    added: DataFrame
    removed: DataFrame
    after: int | None
    until: int
    added_files: int
    removed_files: int
    table_id: str


@dataclass(frozen=True)
class ChangedRows:
    """Exactly the rows by which the commits between two versions of a table changed it.

    Attributes:
        rows: The table's columns, and those of Delta's change data feed: `_change_type` (`insert`,
            `delete`, `update_preimage`, `update_postimage`), `_commit_version` and
            `_commit_timestamp`. Where `after` is None, every row of `until` as an insert.
        after: The older version, or None for the state before the first.
        until: The newer version.
        table_id: Delta's id of the table; a new table in its place has another id.
    """

    rows: DataFrame
    after: int | None
    until: int
    table_id: str


def touched_rows(older: TableSnapshot | None, newer: TableSnapshot) -> TouchedRows:
    """Read the rows of only those files by which two versions differ; see `Table.touched_rows`."""
    if older is None:
        all_rows = newer.read_whole()
        files = newer.num_files
        return TouchedRows(all_rows, all_rows.limit(0), None, newer.version, files, 0, newer.id)
    added, removed = newer.files_not_in(older), older.files_not_in(newer)
    return TouchedRows(
        added=newer.read_files(added),
        removed=older.read_files(removed),
        after=older.version,
        until=newer.version,
        added_files=len(added),
        removed_files=len(removed),
        table_id=newer.id,
    )


def changed_rows(after: int | None, newer: TableSnapshot, *, table: str) -> ChangedRows:
    """Read the change data feed between two versions; see `Table.changed_rows`."""
    if not newer.metadata.keeps_change_feed:
        raise SourceError(
            "the table keeps no change data feed, so what changed cannot be read.",
            table=table,
            operation="READ",
            version=newer.version,
            hint="Set its property delta.enableChangeDataFeed to true, or read its touched rows.",
        )
    if after is None:
        rows = newer.read().select(
            "*",
            F.lit("insert").alias("_change_type"),
            F.lit(newer.version).cast("long").alias("_commit_version"),
            F.current_timestamp().alias("_commit_timestamp"),
        )
        return ChangedRows(rows, None, newer.version, newer.id)
    with translated(table, operation="READ", version=newer.version, otherwise=SourceError):
        # Delta refuses a range that begins after the newest version.
        rows = newer.read_change_feed(min(after + 1, newer.version))
        rows = rows if after < newer.version else rows.limit(0)
    return ChangedRows(rows, after, newer.version, newer.id)
