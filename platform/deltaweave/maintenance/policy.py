"""When a table needs upkeep: limits for the numbers in its log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaweave.delta.log import FileLayout


@dataclass(frozen=True)
class UpkeepPolicy:
    """When a table needs upkeep, and what must not be deleted.

    Attributes:
        small_file_bytes: Size below which a file is small.
        small_files: Compact when at least this many small files share a partition with another,
        small_file_fraction: and they are at least this fraction of all files.
        unclustered_file_fraction: Cluster a clustered table when at least this fraction of its
            files is not clustered yet.
        deleted_row_fraction: Purge when at least this fraction of the rows is marked deleted.
        time_between_vacuums: Least time between two VACUUMs, each of which lists all files of the
            table. On some object stores Delta does not record VACUUM in the table's history;
            there, each run vacuums.
        least_retention: VACUUM is refused if the table keeps removed files for a shorter time,
            because older versions, running readers and downstream assets still need them. This does
            not apply to side tables, which keep removed files for Delta's default time.
    """

    small_file_bytes: int = 64 * 1024**2
    small_files: int = 8
    small_file_fraction: float = 0.25
    unclustered_file_fraction: float = 0.25
    deleted_row_fraction: float = 0.1
    time_between_vacuums: timedelta = timedelta(days=1)
    least_retention: timedelta = timedelta(days=7)

    def compacting(self, layout: FileLayout, is_clustered: bool) -> str | None:
        """Return why the table needs OPTIMIZE; None if it does not."""
        small = fraction(layout.small_files, layout.files)
        if layout.small_files >= self.small_files and small >= self.small_file_fraction:
            return f"{layout.small_files} of {layout.files} files were small"
        unclustered = fraction(layout.unclustered_files, layout.files)
        if is_clustered and layout.files > 1 and unclustered >= self.unclustered_file_fraction:
            return f"{layout.unclustered_files} of {layout.files} files were not clustered"
        return None

    def purging(self, layout: FileLayout) -> str | None:
        """Return why the table needs a purge of rows marked deleted; None if it does not."""
        deleted = fraction(layout.deleted_rows, layout.rows)
        if layout.deleted_rows and deleted >= self.deleted_row_fraction:
            return f"{layout.deleted_rows} of {layout.rows} rows were marked deleted"
        return None

    def of_side_tables(self) -> UpkeepPolicy:
        """Return the policy for side tables: any retention; nobody reads their older versions."""
        return replace(self, least_retention=timedelta(0))

    def vacuuming(self, last: datetime | None, now: datetime) -> str | None:
        """Return why the table needs VACUUM; None if the last one is recent.

        Args:
            last: When the table was last vacuumed, as far as its history knows.
            now: The time now.
        """
        if last is None:
            return "the table's history has no VACUUM"
        since = timedelta(seconds=int((now - last).total_seconds()))
        return f"the last was {since} ago" if since >= self.time_between_vacuums else None


def fraction(part: int, whole: int) -> float:
    """Return a part of a whole; 0 of nothing."""
    return part / whole if whole else 0.0
