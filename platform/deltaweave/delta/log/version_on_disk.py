"""The newest version of a table, read from the log files on a disk: no Spark has to start."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deltaweave.delta.log.actions import LogAction, commit_name
from deltaweave.delta.log.file_list import vector_of
from deltaweave.delta.log.metadata import TableMetadata

if TYPE_CHECKING:
    import pyarrow

# `<version>.checkpoint.parquet`, with a UUID before the suffix, or one of several parts:
# `<version>.checkpoint.<part>.<number of parts>.parquet`.
_NAME = re.compile(r"(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.parquet|.+)")


class CheckpointFiles(NamedTuple):
    """The files of a checkpoint.

    Attributes:
        version: Its version; -1 if there is no checkpoint.
        names: The names of its files.
    """

    version: int
    names: list[str]


def newest_checkpoint(names: Iterable[str]) -> CheckpointFiles:
    """Return the files of the newest whole checkpoint.

    A writer that ended between the parts of a checkpoint leaves some of them, which are none.

    >>> whole = "00000000000000000004.checkpoint.parquet"
    >>> newest_checkpoint([whole, "00000000000000000007.checkpoint.0000000001.0000000002.parquet"])
    CheckpointFiles(version=4, names=['00000000000000000004.checkpoint.parquet'])
    """
    # By version and number of parts; 0 for a checkpoint that is one file.
    files = defaultdict[tuple[int, int], list[str]](list)
    for name in names:
        # Next to a checkpoint, Hadoop may have written hidden checksum files.
        if found := _NAME.fullmatch(name):
            version, number = found.groups()
            files[int(version), int(number or 0)].append(name)
    whole = {key: sorted(found) for key, found in files.items() if key[1] in (0, len(found))}
    if not whole:
        return CheckpointFiles(-1, [])
    newest = min(whole, key=lambda key: (-key[0], key[1]))  # one file before several parts
    return CheckpointFiles(newest[0], whole[newest])


_COMMIT = re.compile(r"\d{20}\.json")
# Decoded bytes of the log, which Python holds as objects several times as big; longer logs are left
# to Spark. Statistics that repeat may be a thousandth of their size in a checkpoint.
_MAX_LOG_BYTES = 64 << 20
_ROWS_AT_ONCE = 1_000
# Features that do not change which files a log lists; a table with another is left to Delta.
_FEATURES = {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint"}
_FEATURES |= {"vacuumProtocolCheck", "variantType", "typeWidening-preview", "variantType-preview"}
_OF_ADDS = ("path", "partitionValues", "size", "stats", "deletionVector", "clusteringProvider")


class _LeftToSparkError(ValueError):
    """The log is too long, or has a form that only Delta reads."""


@dataclass(frozen=True)
class VersionOnDisk:
    """A version of a table on a disk.

    Attributes:
        data_path: Where the table's data is, e.g. `file:/lake/orders`, as Delta has it.
        metadata: Its columns, partition columns and properties.
        adds: The AddFiles of its data files.
    """

    data_path: str
    version: int
    metadata: TableMetadata
    adds: Sequence[LogAction]


def newest_on_disk(table: Path) -> VersionOnDisk | None:
    """Return the newest version of the table in a directory; None if Spark has to read its log.

    Spark reads a log that is long or damaged or has a gap, whose checkpoint has a format of later
    tables, or that of a table with features that are not known here. The list of files is used only
    if its file count and size match the version's checksum, where there is one.

    Raises:
        OSError: The log cannot be read.
    """
    try:
        return _read_version(table, table / "_delta_log")
    except (KeyError, TypeError, ValueError):  # Delta reports what is damaged
        return None


def _read_version(table: Path, log: Path) -> VersionOnDisk | None:
    names = [each.name for each in log.iterdir()]
    checkpoint, parts = newest_checkpoint(names)
    commits = sorted(each for each in names if _COMMIT.fullmatch(each))
    commits = [each for each in commits if int(each[:20]) > checkpoint]
    version = checkpoint + len(commits)
    read = [log / each for each in (*parts, *commits)]
    is_whole = not commits or commits[-1] == commit_name(version)
    if version < 0 or not is_whole or sum(each.stat().st_size for each in read) > _MAX_LOG_BYTES:
        return None
    metadata: TableMetadata | None = None
    files: dict[tuple[str, str], LogAction] = {}
    for action in _actions(read):
        if "sidecar" in action:
            return None
        if added := action.get("add"):
            files[added["path"], vector_of(added)] = added
        elif removed := action.get("remove"):
            files.pop((removed["path"], vector_of(removed)), None)
        elif found := action.get("metaData"):
            metadata = TableMetadata.of_action(found)
        elif not set(action.get("protocol", {}).get("readerFeatures") or ()) <= _FEATURES:
            return None
    adds = list(files.values())
    if metadata is None or not _matches_checksum(log / f"{version:020}.crc", adds):
        return None
    return VersionOnDisk(f"file:{table.absolute()}", version, metadata, adds)


def _actions(files: Sequence[Path]) -> Iterator[LogAction]:
    """Yield the actions of a checkpoint's files and of commits, in order.

    Raises:
        _LeftToSparkError: Spark has to read them.
    """
    decoded_bytes = 0
    for file in files:
        if file.suffix == ".parquet":
            for batch in _in_checkpoint(file):
                decoded_bytes += batch.nbytes
                if decoded_bytes > _MAX_LOG_BYTES:
                    raise _LeftToSparkError("the checkpoint is long")
                for row in batch.to_pylist():
                    yield {kind: _with_maps(each) for kind, each in row.items() if each is not None}
        elif ".checkpoint." in file.name:
            raise _LeftToSparkError("the checkpoint is JSON")
        else:
            with file.open(encoding="utf-8") as lines:
                yield from (json.loads(line) for line in lines if line.strip())


def _in_checkpoint(file: Path) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as checkpoint:
        of_adds = {each.name for each in checkpoint.schema_arrow.field("add").type}
        if "stats" not in of_adds:
            raise _LeftToSparkError("the checkpoint has statistics as structs alone")
        columns = [f"add.{each}" for each in _OF_ADDS] + ["protocol", "metaData", "sidecar"]
        yield from checkpoint.iter_batches(_ROWS_AT_ONCE, columns=columns)


def _with_maps(action: LogAction) -> LogAction:
    """Return an action with dicts for its maps, which Arrow has as lists of pairs."""
    maps = ("partitionValues", "configuration")
    return {name: dict(value or ()) if name in maps else value for name, value in action.items()}


def _matches_checksum(file: Path, adds: Sequence[LogAction]) -> bool:
    try:
        checksum: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    size = sum(add["size"] for add in adds)
    return (checksum["numFiles"], checksum["tableSizeBytes"]) == (len(adds), size)
