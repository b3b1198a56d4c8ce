"""A table that was made for a write which then failed goes again, unless somebody else uses it.

Left there it would be empty, and have the columns of the rows that failed. It must not be taken
from a writer that found it meanwhile. So its next version is written first, one whose protocol
asks for a feature that no writer has: a commit of another writer either came before, and the table
stays, or cannot come any more.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.snapshot import latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_LOG = "_delta_log"
# Small tables beside the data, e.g. of deletes that were remembered.
_SIDE_TABLES = "_deltaweave_"
_LOCK = "deltaweave-removed"


def remove_unused(spark: SparkSession, log: JavaObject, table_id: str, *, name: str | None) -> bool:
    """Remove a table that has had no commit but the one that made it; whether it was removed.

    Args:
        spark: The session.
        log: Delta's log of the table.
        table_id: Delta's id of the table: one made anew since then is not removed.
        name: Its name in the catalog, quoted; None for a table by path.
    """
    snapshot = latest(spark, log)
    is_as_made = snapshot.version == 0 and str(snapshot.snapshot.metadata().id()) == table_id
    if not is_as_made or not _holds_no_data(log):
        return False
    if not _lock(spark, log):
        return False
    view = jvm_.jvm(spark)
    if name is not None:
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    else:
        _delete(log)
    data_path = log.dataPath()
    jvm_.singleton(view.org.apache.spark.sql.delta, "DeltaLog").invalidateCache(
        spark._jsparkSession, data_path
    )
    logger.info("%s: removed, since the write that it was made for failed", data_path.toString())
    return True


def _holds_no_data(log: JavaObject) -> bool:
    """Whether there is no file in the table's directory but those of logs.

    Delta makes no table where files lie: it could not be made again.
    """
    root = log.dataPath()
    found = _files(log).listFiles(root, True)
    start = len(root.toUri().getPath().rstrip("/")) + 1
    while found.hasNext():
        path = str(found.next().getPath().toUri().getPath())[start:]
        if not path.startswith((f"{_LOG}/", _SIDE_TABLES)):
            return False
    return True


def _lock(spark: SparkSession, log: JavaObject) -> bool:
    """Write version 1, after which nobody can commit; False where it was written meanwhile."""
    view = jvm_.jvm(spark)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [],
        "writerFeatures": [_LOCK],
    }
    about = {"timestamp": time.time_ns() // 1_000_000, "operation": "REMOVE UNUSED TABLE"}
    lines = view.java.util.ArrayList()
    for action in ({"commitInfo": {**about, "operationParameters": {}}}, {"protocol": protocol}):
        lines.add(json.dumps(action))
    iterator = jvm_.seq_of(view, lines).iterator()
    try:
        log.store().write(_version_1(log), iterator, False, log.newDeltaHadoopConf())
    except Exception:  # of another writer's version, or of storage: the table is left as it is
        logger.info("%s: not removed: version 1 cannot be written", log.dataPath().toString())
        return False
    return True


def _delete(log: JavaObject) -> None:
    """Delete the log, the version that locks it last, and directories that are empty then."""
    files, root = _files(log), log.dataPath()
    children = list(files.listStatus(root))
    for child in children:
        if child.getPath().getName().startswith(_SIDE_TABLES):
            files.delete(child.getPath(), True)
    lock = _version_1(log).getName()
    for entry in files.listStatus(log.logPath()):
        if entry.getPath().getName() != lock:
            files.delete(entry.getPath(), True)
    files.delete(_version_1(log), False)
    _delete_if_empty(files, root)


def _delete_if_empty(files: JavaObject, directory: JavaObject) -> None:
    for child in files.listStatus(directory):
        if child.isDirectory():
            _delete_if_empty(files, child.getPath())
    if not files.listStatus(directory):
        files.delete(directory, False)


def _version_1(log: JavaObject) -> JavaObject:
    return log.logPath().suffix(f"/{1:020}.json")


def _files(log: JavaObject) -> JavaObject:
    return log.dataPath().getFileSystem(log.newDeltaHadoopConf())
