"""The id under which a run applies again what a RESTORE or REPLACE took back.

Both leave a table's application ids as they are, so what they took back would count as applied. It
is applied again under `deltaweave/again/<number>/<id>`. With an id of its own, Delta refuses one of
two runs that do so at once: with the old id, the first of them would be no news to the second.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from deltaweave.changes.lineage import newest_in_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltaweave import Table


def pair_that_counts(table: Table, pair: tuple[str, int]) -> tuple[str, int]:
    """Return a mark's pair, with the first id that the table does not hold in vain.

    Where the log no longer has what a RESTORE undid, the mark counts: nothing is applied twice.

    Args:
        table: The table, which may be missing.
        pair: The application id and version that mark what the run applies.
    """
    name, version = pair
    if not table.exists():
        return pair
    snapshot = table.snapshot()
    for number in count(1):
        held = snapshot.last_applied(name)
        if held is None or held < version:
            break
        found = newest_in_line(snapshot, name)
        in_line = -1 if found.version is None else found.version
        if found.unknown_since is not None or in_line >= version:
            break
        name = f"deltaweave/again/{number}/{pair[0]}"
    return name, version


def is_known(table: Table, application_ids: Iterable[str]) -> bool:
    """Return whether the log still says that what has these ids is in the table."""
    snapshot = table.snapshot()
    return all(newest_in_line(snapshot, each).unknown_since is None for each in application_ids)
