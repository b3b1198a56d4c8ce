"""Which changes of a merge-on-read table are not in its base yet; read without Spark.

delta-rs reads the logs, checkpoints included, in milliseconds. Credentials of an object store come
from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from dagster import MetadataValue

from dagster_deltaweave.logs.delta_log import LogAt
from dagster_deltaweave.storage import local_path, redacted
from dagster_deltaweave.tables import MergeOnReadLocations
from deltaweave.changes.merge_on_read import (
    BATCH,
    INGESTED,
    MERGED,
    NUMBERED,
    Pending,
    surely_merged,
    watermark_id,
)
from deltaweave.changes.restores import applied_in_line
from deltaweave.errors import NOTHING_DONE, SourceError

if TYPE_CHECKING:
    from deltalake import DeltaTable

_BATCH = f"partition.{BATCH}"
_INGESTED = f"min.{INGESTED}"
"""The columns of a file's batch, and of the time at which its first row came, in delta-rs."""


@dataclass(frozen=True)
class PendingChanges(Pending):
    """The batches that are not in the base yet, next to the size of the base.

    Attributes:
        newest: When the newest batch was appended, pending or not; None if all are purged.
        base_bytes: Size of the base's files.
        base_id: Delta's id of the base: a table recreated in the same place has another.
        merged_batch: The newest batch in the base; 0 for none.
        newest_batch: The newest batch of all; 0 for none.
    """

    newest: datetime | None
    base_bytes: int
    base_id: str
    merged_batch: int
    newest_batch: int

    @property
    def fraction_of_base(self) -> float | None:
        """The pending bytes as a fraction of the base's; None if the base is empty."""
        return self.size_in_bytes / self.base_bytes if self.base_bytes else None

    @property
    def read_amplification(self) -> float | None:
        """Bytes of base and changes divided by those of the base; None if the base is empty.

        This is a lower bound: some methods to join the two read keys a second time.
        """
        fraction = self.fraction_of_base
        return None if fraction is None else 1 + fraction

    def metadata(self) -> dict[str, MetadataValue]:
        """Return the numbers as flat metadata, `changes/…`."""
        seconds_since_newest = _since(self.newest).total_seconds() if self.newest else None
        return number_metadata(
            {
                "changes/pending_batches": self.batches,
                "changes/pending_rows": self.rows,
                "changes/pending_bytes": self.size_in_bytes,
                "changes/oldest_pending_seconds": self.age.total_seconds(),
                "changes/newest_batch_seconds": seconds_since_newest,
                "changes/base_bytes": self.base_bytes,
                "changes/read_amplification": self.read_amplification,
                "changes/merged_batch": self.merged_batch,
                "changes/newest_batch": self.newest_batch,
            }
        )


def pending_changes(at: MergeOnReadLocations) -> PendingChanges | None:
    """Return the pending changes; None if nothing was ever appended.

    Raises:
        SourceError: A log cannot be read, or batches were appended and there is no base.
    """
    # The base is read first, because batches in it may be purged before the changes are read.
    base, changes = _open_table(at.base), _open_table(at.changes)
    if changes is None:
        return None
    if base is None:
        # The first append creates the changeset, then the base, and then appends.
        if _newest_batch(changes, _file_actions(changes)) == 0:
            return None
        raise _missing_base_error(at)
    base_id = str(base.metadata().id)
    watermark = watermark_id(base_id)
    merged = base.transaction_version(watermark)
    if merged is not None:
        try:
            merged = merged_by_commits(at.base, base.version(), watermark, merged)
        except OSError as error:
            raise _unreadable_log_error(at.base, error) from None
    else:  # a rematerialization of an earlier release, or none
        merged = base.transaction_version(MERGED) or 0
    files = _file_actions(changes)
    return PendingChanges(
        **asdict(_batches(file for file in files if file[_BATCH] > merged)),
        newest=max(map(_time, files), default=None),
        base_bytes=sum(file["size_bytes"] for file in _file_actions(base)),
        base_id=base_id,
        merged_batch=merged,
        newest_batch=_newest_batch(changes, files),
    )


def _newest_batch(changes: DeltaTable, files: Iterable[dict[str, Any]]) -> int:
    """Return the newest batch that was appended, also if it was purged; 0 for none."""
    # A clone has batches, and none of its source's transaction ids.
    numbers = (file.get(_BATCH) or 0 for file in files)
    return max(changes.transaction_version(NUMBERED) or 0, *numbers, 0)


def _missing_base_error(at: MergeOnReadLocations) -> SourceError:
    return SourceError(
        f"it does not exist, but batches of its changes are in {redacted(at.changes)}.",
        table=at.base,
        operation="looking for pending changes",
        state=NOTHING_DONE,
        hint="Put the base back in this place, or configure the place where it is now. The next "
        "append would create an empty base, without the rows of batches that were purged.",
    )


def merged_by_commits(location: str, version: int, watermark: str, batch: int) -> int:
    """Return the newest batch in a version of a base.

    Batches count as pending if log cleanup deleted the commits that say what a RESTORE left.
    """
    found = applied_in_line(LogAt(location), version, watermark, batch).version
    return surely_merged(found or 0)


def batches_after(at: MergeOnReadLocations, batch: int) -> Pending:
    """Return the batches that were appended after the batch with this number.

    Raises:
        SourceError: The log cannot be read.
    """
    changes = _open_table(at.changes)
    return _batches(
        file for file in (_file_actions(changes) if changes else []) if file[_BATCH] > batch
    )


def number_metadata(values: dict[str, int | float | None]) -> dict[str, MetadataValue]:
    """Return numbers as metadata, without those that are None."""
    return {
        key: MetadataValue.int(value) if isinstance(value, int) else MetadataValue.float(value)
        for key, value in values.items()
        if value is not None
    }


def _batches(files: Iterable[dict[str, Any]]) -> Pending:
    files = list(files)
    return Pending(
        batches=len({file[_BATCH] for file in files}),
        rows=sum(file.get("num_records") or 0 for file in files),
        size_in_bytes=sum(file["size_bytes"] for file in files),
        oldest=min(map(_time, files), default=None),
    )


def _open_table(location: str) -> DeltaTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    path = local_path(location)
    if path is not None and not path.exists():
        return None  # delta-rs would make the directory
    # Spark and Arrow accept an endpoint without TLS; delta-rs needs an option for it.
    is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http:")
    try:
        return DeltaTable(
            location if path is None else str(path.absolute()),
            storage_options={"allow_http": "true"} if is_plain and path is None else None,
        )
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise _unreadable_log_error(location, error) from None


def _unreadable_log_error(location: str, error: Exception) -> SourceError:
    return SourceError(
        f"its log cannot be read: {redacted(error)}",
        table=location,
        operation="looking for pending changes",
        state=NOTHING_DONE,
    )


def _file_actions(table: DeltaTable) -> list[dict[str, Any]]:
    import pyarrow as pa

    actions = pa.table(table.get_add_actions(flatten=True))
    wanted = {"size_bytes", "num_records", "modification_time", _BATCH, _INGESTED}
    known = actions.select([name for name in actions.column_names if name in wanted])
    files: list[dict[str, Any]] = known.to_pylist()
    return files


def _time(file: dict[str, Any]) -> datetime:
    """Return when a file's rows came, which does not change when upkeep rewrites files."""
    ingested_at: datetime | None = file.get(_INGESTED)
    if ingested_at is not None:
        return ingested_at
    return datetime.fromtimestamp(file["modification_time"] / 1000, timezone.utc)


def _since(time: datetime | None) -> timedelta:
    return datetime.now(timezone.utc) - time if time else timedelta(0)
