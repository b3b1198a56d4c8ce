"""Which partitions a table holds, by the record that each merge commits; read without Spark.

RESTORE and REPLACE leave application ids as they are. So the next run commits -1 for partitions
that one of them took back, and a reader looks only at the commits since then
(`docs/internals/transaction-ids.md`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_deltaweave.landing import Landing
from dagster_deltaweave.logs.delta_log import NUM_READERS, LogAt
from dagster_deltaweave.partitions import IDENTITY_TAG, tags_of_run, written_tag
from dagster_deltaweave.storage import file_system
from deltaweave.changes.restores import RESTORED, Log, begins_history, version_before
from deltaweave.delta.log import newest_checkpoint

if TYPE_CHECKING:
    from dagster import AssetKey, DagsterInstance, RunRecord
    from pyarrow.fs import FileSystem

_OF_DELIVERY = 2**62
_OF_LANDING = "\t"  # which is in no partition key

NOTHING = -1
"""The version of an application id of a partition that a RESTORE or REPLACE took back."""

# Before the first merge that records anything, a table may have tens of thousands of commits.
_MAX_LOOKED = 500


@dataclass(frozen=True)
class HeldPartitions:
    """An asset's partitions in a table, by the table's log.

    Attributes:
        records: The records of the partitions in the table, by `recorded_name`.
        order: Partition in the table to the version of its order's application id.
        counted: Partitions whose rows were applied under their own ids, by `idempotent_by`.
    """

    records: Mapping[str, int]
    order: Mapping[str, int]
    counted: Collection[str] = ()

    @classmethod
    def of(
        cls, asset: AssetKey, records: str, applied: Mapping[str, int], back: Collection[str]
    ) -> HeldPartitions:
        """Return the partitions of an asset by a table's application ids.

        `records` is the application id of the asset's records. `back` are the ids that a RESTORE or
        REPLACE took back.
        """
        held, order = (
            {
                name.removeprefix(prefix): number
                for name, number in applied.items()
                if name.startswith(prefix) and number >= least and name not in back
            }
            for prefix, least in ((f"{records}#", 1), (f"{order_id(asset)}#", 0))
        )
        own = partition_id(asset, "")
        counted = {name.removeprefix(own) for name in applied if name.startswith(own)}
        return cls(held, order, counted)

    def counts(self, partition: str, landing: Landing) -> bool:
        """Return whether rows of a partition that counts once were merged, from there or by hand.

        A function that returned None leaves a record of the partition alone.
        """
        return partition in self.counted and bool(self._records(partition, landing))

    def holds_delivery(
        self, partition: str, landing: Landing, delivery: str, changed_at: int
    ) -> bool:
        """Return whether what was merged includes a delivery; see `holds_delivery`."""
        found = self._records(partition, landing)
        return any(holds_delivery(each, delivery, changed_at) for each in found)

    def holds_run(self, partition: str, run: RunRecord, instance: DagsterInstance) -> bool:
        """Return whether a run merged the partition, or one since that read as much."""
        tags = tags_of_run(run.dagster_run, instance)
        delivery = written_tag(tags, IDENTITY_TAG)
        landing = Landing.of_run(tags) if delivery else Landing()
        created_ns = int(run.create_timestamp.timestamp() * 1000) * 1_000_000
        return self.holds_delivery(partition, landing, delivery or "", created_ns - 1)

    def _records(self, partition: str, landing: Landing) -> list[int]:
        own, earlier = recorded_names(partition, landing)
        names = {own if own in self.records else earlier, partition}
        return [self.records[name] for name in names if name in self.records]


def recorded_name(partition: str, landing: Landing) -> str:
    """Return the name by which a partition is recorded, if it landed in a directory."""
    directory, suffix = landing
    if not directory:
        return partition
    # No path contains the separator.
    named = f"{directory}\0{suffix}" if suffix else directory
    digest = hashlib.sha256(named.encode(errors="surrogateescape")).hexdigest()
    return f"{partition}{_OF_LANDING}{digest[:8]}"


def recorded_names(partition: str, landing: Landing) -> tuple[str, str]:
    """Return the name of a partition's record, and the one of releases that left out the suffix.

    The latter counts as long as there is no record by the former. Records of deliveries are
    digests, so that of another suffix is another delivery's.
    """
    return recorded_name(partition, landing), recorded_name(partition, Landing(landing.directory))


def record_of(delivery: str | None, created_ns: int) -> int:
    """Return the version that records a merged partition.

    `delivery` identifies the delivery that the run applied; None for whatever had landed.
    `created_ns` is when the run was created, so before it read anything, in ns since 1970.

    Returns:
        From 2^62 on, a digest of the delivery; below that, the time.
    """
    if delivery is None:
        return min(created_ns, _OF_DELIVERY - 1)
    return _OF_DELIVERY + int(hashlib.sha256(delivery.encode()).hexdigest()[:15], 16)


def holds_delivery(record: int, delivery: str, changed_at: int) -> bool:
    """Return whether the record of a partition includes a delivery.

    `changed_at` is when the storage last saw it change, in ns since 1970.
    """
    return record == record_of(delivery, 0) if record >= _OF_DELIVERY else changed_at < record


def records_id(table_id: str, asset: AssetKey) -> str:
    """Return the application id of an asset's records; partitions append `#<partition>`."""
    return f"deltaweave/merged/{table_id[:8]}/{asset.to_user_string()}"


def order_id(asset: AssetKey) -> str:
    """Return the application id of an asset's partition order; partitions append `#<partition>`.

    See `io_manager/merge_order`. A commit that records that a RESTORE took a partition back records
    it of the order, too.
    """
    return f"deltaweave/order/{asset.to_user_string()}"


def partition_id(asset: AssetKey, partition: str) -> str:
    """Return the application id of a partition that counts once; see `idempotent_by`."""
    return f"{asset.to_user_string()}#{partition}"


def records_of_merge(
    log: Log,
    version: int,
    records: str,
    merged: Mapping[str, int],
    *,
    looked: int | None = None,
    order: str | None = None,
) -> dict[str, int]:
    """Return the application ids and versions that a commit adds to record merged partitions.

    `looked` is the version that the table holds of `records`; None for none. `order` is the
    application id of the order of the asset's partitions; None for none.
    """
    prefixes = tuple(f"{each}#" for each in (records, order) if each is not None)
    return {
        **dict.fromkeys(taken_back(log, version, records, prefixes, looked=looked), NOTHING),
        **{f"{records}#{partition}": record for partition, record in merged.items()},
        records: version,
    }


def merged_partitions(location: str, asset: AssetKey) -> HeldPartitions | None:
    """Return which partitions of an asset a table holds; None if there is no table.

    Raises:
        OSError: The log cannot be read.
        ValueError: A file of the log is damaged.
    """
    store, base = file_system(location)
    directory = f"{base}/_delta_log"
    version, table_id, applied = newest_ids(store, directory)
    if table_id is None:
        return None
    records = records_id(table_id, asset)
    prefixes = f"{records}#", f"{order_id(asset)}#"
    back = set[str]()
    if records in applied:
        back = taken_back(LogAt(location), version, records, prefixes, looked=applied[records])
    return HeldPartitions.of(asset, records, applied, back)


def taken_back(
    log: Log, version: int, records: str, prefix: str | tuple[str, ...], *, looked: int | None
) -> set[str]:
    """Return the application ids of partitions that a RESTORE or REPLACE has undone since a merge.

    Where the log does not show to which version a RESTORE went, all that it still holds counts as
    undone: a partition is then merged again, and none is lost.

    `looked` is the version that the table holds of `records`; None for none.
    """
    back, again = set[str](), set[str]()
    until, at = -1, version
    # Merges have looked at the commits up to `looked`; only a few are looked at again.
    left = _MAX_LOOKED
    while at > until and left and (commit := log.commit(at)) is not None:
        again |= {name for name in commit.applied if name.startswith(prefix)}
        until = max(until, commit.applied.get(records, -1))
        left -= looked is None or at <= looked
        at -= 1
        if commit.operation != RESTORED and not begins_history(commit):
            continue
        before = None if begins_history(commit) else version_before(log, commit)
        undone = _undone_ids(log, before, commit.version)
        back.update(each for each in undone if each.startswith(prefix) and each not in again)
        at = -1 if before is None else before
    return back


def _undone_ids(log: Log, before: int | None, restored: int) -> Iterator[str]:
    """Yield the application ids of the undone commits, newest first."""
    for version in range(restored - 1, -1 if before is None else before, -1):
        commit = log.commit(version)
        if commit is None:
            return
        yield from commit.applied


class _LoggedIds(NamedTuple):
    """The table's id and the application ids in a commit, a checkpoint or a log.

    Attributes:
        table_id: The table's id; None where a file does not have it.
        applied: The newest version of each application id.
    """

    table_id: str | None
    applied: dict[str, int]


class NewestIds(NamedTuple):
    """The newest version of a log, with the ids of that version."""

    version: int
    table_id: str | None
    applied: dict[str, int]


def newest_ids(store: FileSystem, directory: str) -> NewestIds:
    """Return the newest version of a table, its id, and the version of each application id."""
    from pyarrow.fs import FileSelector

    infos = store.get_file_info(FileSelector(directory, allow_not_found=True))
    checkpoint, files = newest_checkpoint(info.base_name for info in infos)
    names = sorted(
        info.base_name
        for info in infos
        if info.extension == "json" and info.base_name[:-5].isdigit()
    )
    since = [name for name in names if int(name[:-5]) > checkpoint]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        found = [_read_checkpoint(store, f"{directory}/{name}") for name in files]
        found += readers.map(lambda name: _read_lines(store, f"{directory}/{name}"), since)
    ids = [each.table_id for each in found if each.table_id is not None]
    applied = {name: record for each in found for name, record in each.applied.items()}
    newest = int(since[-1][:-5]) if since else checkpoint
    return NewestIds(newest, ids[-1] if ids else None, applied)


def _read_lines(store: FileSystem, path: str) -> _LoggedIds:
    """Read the table's id, if a commit or JSON checkpoint has it, and its application ids."""
    table_id: str | None = None
    applied: dict[str, int] = {}
    with store.open_input_stream(path) as stream:
        lines = stream.read().split(b"\n")
    for line in lines:
        if b'"txn"' not in line and b'"metaData"' not in line:
            continue
        action: dict[str, Any] = json.loads(line)
        if "metaData" in action:
            table_id = action["metaData"]["id"]
        if "txn" in action:
            applied[action["txn"]["appId"]] = int(action["txn"]["version"])
    return _LoggedIds(table_id, applied)


def _read_checkpoint(store: FileSystem, path: str) -> _LoggedIds:
    if path.endswith(".json"):
        return _read_lines(store, path)
    from pyarrow import parquet

    with store.open_input_file(path) as file:
        actions = parquet.ParquetFile(file)
        known = set(actions.schema_arrow.names)
        wanted = {"metaData": ["id"], "txn": ["appId", "version"]}
        columns = [f"{kind}.{each}" for kind in wanted if kind in known for each in wanted[kind]]
        found = actions.read(columns=columns)
    found_by_kind = {
        kind: found[kind].drop_null().combine_chunks().flatten() if kind in known else ()
        for kind in wanted
    }
    ids = found_by_kind["metaData"][0].to_pylist() if found_by_kind["metaData"] else []
    names_and_versions = [each.to_pylist() for each in found_by_kind["txn"]] or [[], []]
    applied = dict(zip(*names_and_versions, strict=True))
    return _LoggedIds(ids[0] if ids else None, applied)
