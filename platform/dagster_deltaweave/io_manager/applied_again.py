"""The application id under which a run applies again what a RESTORE or REPLACE undid.

Both leave a table's application ids as they are, so what they undid would count as applied. It is
applied again under `deltaweave/again/<number>/<id>`. If two runs do so at once, Delta refuses the
second because the first committed the new id; under the old id, it would not notice.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from deltaweave.changes.lineage import newest_in_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltaweave import Table


def pair_that_counts(table: Table, pair: tuple[str, int]) -> tuple[str, int]:
    """Return a pair with an id whose version in the table, if any, counts.

    An id does not count if a RESTORE or REPLACE undid the commit that holds it. Where the log no
    longer shows what a RESTORE undid, it counts: nothing is applied twice.

    Args:
        table: The table, which may be missing.
        pair: The application id and version that record what the run applies.
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
