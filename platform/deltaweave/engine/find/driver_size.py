"""How much of a table a merge on the driver reads and copies, by where Spark's executors are."""

from __future__ import annotations

from deltaweave.engine import limits


def most_on_driver(limit: int, master: str) -> int:
    """A limit of rows or bytes of target files, by Spark's master URL.

    Executors on other machines bring cores and disks of their own, so that the driver leaves them
    more than those of a local master, which has the driver's own.
    """
    return limit * limits.TIMES_ON_LOCAL_MASTER if master.startswith("local") else limit
