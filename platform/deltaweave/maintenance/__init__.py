"""Maintenance of Delta tables: OPTIMIZE, purging, statistics, the key index and VACUUM, when due.

- `policy`: the numbers at which a table needs maintenance.
- `operations`: what maintenance does to a table.
"""

from __future__ import annotations

from deltaweave.maintenance.operations import OPERATIONS, Done
from deltaweave.maintenance.policy import UpkeepPolicy

__all__ = ["OPERATIONS", "Done", "UpkeepPolicy"]
