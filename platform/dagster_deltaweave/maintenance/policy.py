"""When a table needs upkeep: numbers from its log, and what they may be."""

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
        small_file_fraction: and are at least this fraction of all files.
        unclustered_file_fraction: Cluster a clustered table when at least this fraction of its
            files is not clustered yet.
        deleted_row_fraction: Purge when at least this fraction of the rows is marked deleted.
        time_between_vacuums: Least time between two VACUUMs, each of which lists all files of the
            table. On some object stores Delta does not record VACUUM in the table's history;
            there, each run vacuums.
        least_retention: VACUUM is refused where the table keeps removed files for a shorter time:
            older versions, running readers and downstream assets still need them. It does not apply
            to side tables, which keep removed files for Delta's default time.
    """

    small_file_bytes: int = 64 * 1024**2
    small_files: int = 8
    small_file_fraction: float = 0.25
    unclustered_file_fraction: float = 0.25
    deleted_row_fraction: float = 0.1
    time_between_vacuums: timedelta = timedelta(days=1)
    least_retention: timedelta = timedelta(days=7)

    def compacting(self, layout: FileLayout, is_clustered: bool) -> str | None:
        """Why the table is to be optimized, or None where it is not."""
        small = fraction(layout.small_files, layout.files)
        if layout.small_files >= self.small_files and small >= self.small_file_fraction:
            return f"{layout.small_files} of {layout.files} files are small"
        unclustered = fraction(layout.unclustered_files, layout.files)
        if is_clustered and layout.files > 1 and unclustered >= self.unclustered_file_fraction:
            return f"{layout.unclustered_files} of {layout.files} files are not clustered"
        return None

    def purging(self, layout: FileLayout) -> str | None:
        """Why rows marked deleted are to be purged, or None where they are not."""
        deleted = fraction(layout.deleted_rows, layout.rows)
        if layout.deleted_rows and deleted >= self.deleted_row_fraction:
            return f"{layout.deleted_rows} of {layout.rows} rows are marked deleted"
        return None

    def of_side_tables(self) -> UpkeepPolicy:
        """The same for side tables: nobody reads their older versions, so any retention will do."""
        return replace(self, least_retention=timedelta(0))

    def vacuuming(self, last: datetime | None, now: datetime) -> str | None:
        """Why removed files are to be deleted, or None where that was done lately.

        Args:
            last: When the table was last vacuumed, as far as its history knows.
            now: The time now.
        """
        if last is None:
            return "the table's history knows of none"
        since = timedelta(seconds=int((now - last).total_seconds()))
        return f"the last was {since} ago" if since >= self.time_between_vacuums else None


def fraction(part: int, whole: int) -> float:
    """A part of a whole; 0 of nothing."""
    return part / whole if whole else 0.0
