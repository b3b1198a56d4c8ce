"""Tables of histories (SCD type 2): a row for each version of a key.

- `versions`: computes the versions of the keys in a batch, and merges them.
- `remembered_events`: remembers the events that the table's versions do not show.
"""

from __future__ import annotations

from deltaweave.changes.history.remembered_events import Remembered
from deltaweave.changes.history.versions import END, START, Histories, history_columns

__all__ = ["END", "START", "Histories", "Remembered", "history_columns"]
