"""When a table needs upkeep: numbers from its log, and what they may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltaweave.delta.snapshot import FileLayout


@dataclass(frozen=True)
class UpkeepPolicy:
    """When a table needs upkeep, and what must not be deleted.

    Attributes:
        small_file_bytes: Size below which a file is small.
        small_files: Compact from this many small files on that share a partition with another,
        small_file_fraction: and from this fraction of all files on.
        unclustered_file_fraction: Cluster a clustered table from this fraction of files on that
            no clustering has arranged.
        deleted_row_fraction: Purge from this fraction of rows on that are marked deleted.
        time_between_vacuums: VACUUM lists all files of the table: so seldom, where the table's
            history tells of it (on some object stores Delta does not record it).
        least_retention: VACUUM is refused where the table keeps removed files for a shorter time:
            older versions, readers under way and downstream assets still need them. Not of side
            tables, which keep them for as long as Delta does by default.
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
