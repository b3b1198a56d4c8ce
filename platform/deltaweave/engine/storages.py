"""Where the data files of a table lie, as pyarrow opens them."""

from __future__ import annotations

from deltaweave.delta.files import settings_for_arrow
from deltaweave.delta.log import TableSnapshot
from deltaweave.engine.tasks import Disk, ObjectStore, Storage


def storage_of(table: TableSnapshot) -> Storage | None:
    """Return the storage of a table's files; None if Python does not open it."""
    if table.data_path.startswith("file:"):
        return Disk()
    settings = settings_for_arrow(table)
    return None if isinstance(settings, str) else ObjectStore(settings)
