"""A batch as a caller hands it over, which may come again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from deltaweave.changes.lineage import OfOneLine, newest_in_line
from deltaweave.changes.side_state import noted_now
from deltaweave.delta.commit import reset_session_pair, session_pair, without_session_pair
from deltaweave.delta.jvm import letting_go
from deltaweave.delta.log import TableSnapshot
from deltaweave.table import Table

Terms = tuple[tuple[str, int] | None, OfOneLine]
"""The pair and the lease of a merge."""


@contextmanager
def pair_of_batch(table: Table, given: tuple[str, int] | None) -> Iterator[tuple[str, int] | None]:
    """Yield the pair of a batch: a given one or the session's, which no other write then takes.

    A batch is written by several commits, to the table and to tables beside it.

    Args:
        table: The table to which the batch is applied.
        given: The pair that the caller gives, or None.

    Raises:
        StatementError: Only one half of the session's pair is set.
    """
    pair = given or session_pair(table.spark, table=table.path_or_name)
    with without_session_pair():
        yield pair
    if pair is not None and given is None:
        with letting_go("the session's idempotency pair"):
            reset_session_pair(table.spark)


@dataclass(frozen=True)
class Delivery:
    """What is the same in all attempts to apply a batch.

    Attributes:
        pair: The batch's application id and version, or None.
        began: The version of the table before the first attempt.
        noted: When its events are noted beside the table, in µs since 1970. The commit that applies
            them names it (`lineage`), whichever attempt had noted them.
    """

    pair: tuple[str, int] | None
    began: int
    noted: int = field(default_factory=noted_now)

    @classmethod
    def of(cls, table: Table, pair: tuple[str, int] | None) -> Delivery:
        """Note a batch that is handed over now."""
        return cls(pair, table.version())

    def terms(self, newest: TableSnapshot, line: OfOneLine) -> Terms:
        """Return the pair and the lease with which a merge applies the batch as a whole.

        RESTORE takes the rows of a batch and leaves its pair, by which all but its deletes would
        count as applied. Then the batch is applied again, and its commit names the pair again. So
        it is where the log does not show it, because a batch that is applied twice changes nothing.

        What was noted is judged by its time where no commit names it. So a commit names it even if
        it changes nothing, unless the table is as it was then.

        Args:
            newest: The version of the table for which its events were noted.
            line: The lease of that version.
        """
        if newest.version > self.began:
            line = replace(line, are_committed_alone=True)
        held = None if self.pair is None else newest.last_applied(self.pair[0])
        if self.pair is None or held is None or held < self.pair[1]:
            return self.pair, line
        found = newest_in_line(newest, self.pair[0])
        if found.version is not None and found.version >= self.pair[1]:
            return self.pair, line
        return None, line.with_pair(self.pair, held)
