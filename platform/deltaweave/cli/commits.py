"""Tables on a disk, and their commits, read from the files of the log: no Spark has to start."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from deltaweave.errors import NotADeltaTableError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_CONFIGURING = frozenset({"HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"})
_VERSION = re.compile(r"\d{20}\.json")
# Files of commits that a catalog keeps, which has the last word on them. Delta makes it anywhere.
_OF_A_CATALOG = "_staged_commits"


@dataclass(frozen=True)
class CommitOnDisk:
    """A commit, with the names that `DESCRIBE HISTORY` has.

    Attributes:
        version: The version it made.
        timestamp: When, in this machine's time zone.
        operation: What was done, e.g. `MERGE`; empty if its writer does not say.
        operationMetrics: Its metrics under Delta's names, as text.
    """

    version: int
    timestamp: datetime
    operation: str
    operationMetrics: Mapping[str, str]  # noqa: N815  # as the column is called


def table_on_disk(table: str, conf: Sequence[str] = ()) -> Path | None:
    """Return the directory of a table on a disk; None if it takes Spark to read its log.

    Args:
        table: Its path, `file:` URI or name.
        conf: Spark settings of the command; with any, Spark decides what a path means.

    Raises:
        NotADeltaTableError: The path has no table.
        OSError: The log cannot be read.
    """
    given = table.removeprefix("delta.`").rstrip("`") if table.startswith("delta.`") else table
    path = re.sub(r"^file:(//)?(?=/)", "", given)
    if "/" not in path or "`" in path or _SCHEME.match(path):
        return None
    # Hadoop's configuration may mean another file system by a path that names none.
    if path == given and (conf or _CONFIGURING & os.environ.keys()):
        return None
    log = Path(path, "_delta_log")
    if log.is_dir():
        return None if any(log.glob(f"{_OF_A_CATALOG}/*")) else log.parent
    raise NotADeltaTableError.at(table)


def commits_on_disk(table: str, conf: Sequence[str] = ()) -> Iterator[CommitOnDisk] | None:
    """Return the commits of a table, the newest first; None if it takes Spark to read them.

    Args:
        table: Its path, `file:` URI or name.
        conf: As `table_on_disk` takes it.

    Raises:
        NotADeltaTableError: The path has no table.
        OSError: The log cannot be read.
    """
    directory = table_on_disk(table, conf)
    if directory is None:
        return None
    log = directory / "_delta_log"
    files = [each for each in log.iterdir() if _VERSION.fullmatch(each.name)]
    return map(_commit, sorted(files, reverse=True)) if files else None


def _commit(file: Path) -> CommitOnDisk:
    about = _commit_info(file)
    committed_ms = about.get("inCommitTimestamp") or file.stat().st_mtime_ns // 1_000_000
    return CommitOnDisk(
        int(file.stem),
        datetime.fromtimestamp(committed_ms / 1000),
        str(about.get("operation") or ""),
        about.get("operationMetrics") or {},
    )


def _commit_info(file: Path) -> dict[str, Any]:
    """Read the action that describes the commit; Delta's writers put it first."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith('{"commitInfo"'):
                return dict(json.loads(line)["commitInfo"])
    return {}
