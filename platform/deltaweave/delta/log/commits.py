"""The commits of a table: what each did, and the application ids that it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import translated
from deltaweave.delta.log.file_paths import commit_file
from deltaweave.delta.log.snapshot import TableSnapshot

# The lines of these actions, as Delta's writers and others write them.
_KINDS = r'^\s*\{\s*"(commitInfo|txn)"'


@dataclass(frozen=True)
class Commit:
    """A commit of a table.

    Attributes:
        version: The version that it made.
        at_ms: When it was made, by its writer's clock, in ms since 1970.
        operation: Delta's name of what it did; empty if its writer gave none.
        parameters: The operation's parameters.
        applied: The application ids that it holds, with their versions.
    """

    version: int
    at_ms: int
    operation: str
    parameters: Mapping[str, Any]
    applied: Mapping[str, int]


def commit_of(table: TableSnapshot, version: int) -> Commit | None:
    """The commit of a version in the log of a table; None if the log does not hold it any more.

    Raises:
        DeltaweaveError: The log cannot be read.
    """
    log, view = table.log, jvm_.jvm(table.spark)
    with translated(table.data_path, operation="reading its log", version=version):
        path, settings = commit_file(log, version), log.newDeltaHadoopConf()
        if not path.getFileSystem(settings).exists(path):
            return None
        lines = jvm_.java_list(view, log.store().read(path, settings))
        wanted = view.java.util.regex.Pattern.compile(_KINDS).asPredicate()
        joined = view.java.util.stream.Collectors.joining("\n")
        text = str(lines.stream().filter(wanted).collect(joined))
    return _commit(version, [json.loads(line) for line in text.split("\n") if line])


def _commit(version: int, actions: list[dict[str, Any]]) -> Commit:
    infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    info = infos[0] if infos else {}
    pairs = [action["txn"] for action in actions if "txn" in action]
    return Commit(
        version,
        int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
        info.get("operation") or "",
        info.get("operationParameters") or {},
        {pair["appId"]: int(pair["version"]) for pair in pairs},
    )
