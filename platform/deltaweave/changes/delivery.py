"""A batch as a caller hands it over, which may come again."""

from __future__ import annotations

from dataclasses import dataclass, field

from deltaweave.changes.lineage import OfOneLine, has_left, newest_in_line
from deltaweave.changes.side_state import noted_now
from deltaweave.delta.log import TableSnapshot
from deltaweave.table import Table

Terms = tuple[tuple[str, int] | None, OfOneLine]
"""The pair and the lease of a merge."""


@dataclass(frozen=True)
class Delivery:
    """What is the same in all attempts to apply a batch.

    Attributes:
        pair: The batch's application id and version, or None.
        began: The version of the table before the first attempt; -1 without a pair.
        noted: When its events are noted beside the table, in µs since 1970. The commit that applies
            them names it (`lineage`), whichever attempt had noted them.
    """

    pair: tuple[str, int] | None = None
    began: int = -1
    noted: int = field(default_factory=noted_now)

    @classmethod
    def of(cls, table: Table, pair: tuple[str, int] | None) -> Delivery:
        """A batch that is handed over now."""
        return cls(pair, -1 if pair is None else table.version())

    def terms(self, newest: TableSnapshot, line: OfOneLine) -> Terms:
        """The pair and the lease with which a merge applies the batch as a whole.

        RESTORE takes the rows of a batch and leaves its pair, by which all but its deletes would
        count as applied. Then the batch is applied again, and its commit names the pair again. So
        it is where the log does not tell, because a batch that is applied twice changes nothing.

        Args:
            newest: The version of the table for which its events were noted.
            line: The lease of that version.
        """
        held = None if self.pair is None else newest.last_applied(self.pair[0])
        if self.pair is None or held is None or held < self.pair[1]:
            return self.pair, line
        found = newest_in_line(newest, self.pair[0])
        is_applied = found.version is not None and found.version >= self.pair[1]
        # An earlier attempt may have applied it by what counted before a RESTORE.
        is_own = found.by is not None and found.by > self.began
        if is_applied and not (is_own and has_left(newest, self.began)):
            return self.pair, line
        return None, line.with_pair(self.pair, held)
