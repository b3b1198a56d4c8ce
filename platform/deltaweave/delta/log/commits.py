"""The commits of a table: what each did, and the application ids that it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deltaweave.delta.jvm import Jvm, translated
from deltaweave.delta.log.file_paths import commit_file
from deltaweave.delta.log.snapshot import TableSnapshot

# The lines of these actions, as Delta's writers and others write them.
_OF_ITSELF = r'^\s*\{\s*"(commitInfo|txn|metaData)"'
_OF_FILES = r'^\s*\{\s*"(add|remove)"'

_ROOT = re.compile(r"^([A-Za-z][\w+.-]*):/+")


@dataclass(frozen=True)
class Commit:
    """A commit of a table.

    Attributes:
        version: The version that it made.
        at_ms: When it was made, by its writer's clock, in ms since 1970.
        operation: Delta's name of what it did; empty if its writer gave none.
        parameters: The operation's parameters.
        applied: The application ids that it holds, with their versions.
        created_at_ms: When the table of its metadata was created, in ms since 1970; None if it has
            no metadata, or that lacks it. A clone has the time of its source.
        read: The version that its writer read; None if it is not recorded.
    """

    version: int
    at_ms: int
    operation: str
    parameters: Mapping[str, Any]
    applied: Mapping[str, int]
    created_at_ms: int | None = None
    read: int | None = None


@dataclass(frozen=True)
class FileChanges:
    """The files that a commit added and removed; a file with other deleted rows is another one."""

    added: frozenset[str]
    removed: frozenset[str]


def commit_of(table: TableSnapshot, version: int) -> Commit | None:
    """Read the commit of a version from a table's log; None if the log no longer holds it.

    Raises:
        DeltaweaveError: The log cannot be read.
    """
    actions = _actions(table, version, _OF_ITSELF)
    return None if actions is None else commit_from(version, actions)


def file_changes_of(table: TableSnapshot, version: int) -> FileChanges | None:
    """Read the files that a commit changed; None if the log no longer holds it.

    Raises:
        DeltaweaveError: The log cannot be read.
    """
    actions = _actions(table, version, _OF_FILES)
    return None if actions is None else file_changes_from(actions)


def _actions(table: TableSnapshot, version: int, kinds: str) -> list[dict[str, Any]] | None:
    log, jvm = table.log, Jvm.of(table.spark)
    with translated(table.data_path, operation="reading its log", version=version):
        path, settings = commit_file(log, version), log.newDeltaHadoopConf()
        if not path.getFileSystem(settings).exists(path):
            return None
        lines = jvm.java_list(log.store().read(path, settings))
        wanted = jvm.java.util.regex.Pattern.compile(kinds).asPredicate()
        joined = jvm.java.util.stream.Collectors.joining("\n")
        text = str(lines.stream().filter(wanted).collect(joined))
    return [json.loads(line) for line in text.split("\n") if line]


def commit_from(version: int, actions: Iterable[Mapping[str, Any]]) -> Commit:
    """Build the commit of a version from its actions."""
    actions = list(actions)
    infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    info = infos[0] if infos else {}
    pairs = [action["txn"] for action in actions if "txn" in action]
    metadata = [action["metaData"] for action in actions if "metaData" in action]
    return Commit(
        version,
        int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
        info.get("operation") or "",
        info.get("operationParameters") or {},
        {pair["appId"]: int(pair["version"]) for pair in pairs},
        metadata[0].get("createdTime") if metadata else None,
        info.get("readVersion"),
    )


def file_changes_from(actions: Iterable[Mapping[str, Any]]) -> FileChanges:
    """Collect the files that a commit changed from its actions.

    A commit that only adds files without a change of data describes files that are there: their
    statistics, or their rows' ids.
    """
    changed: dict[str, set[str]] = {"add": set(), "remove": set()}
    changes_data = False
    for action in actions:
        for kind, files in changed.items():
            if kind in action:
                files.add(_file(action[kind]))
                changes_data |= action[kind].get("dataChange", True)
    if not changed["remove"] and not changes_data:
        return FileChanges(frozenset(), frozenset())
    return FileChanges(frozenset(changed["add"]), frozenset(changed["remove"]))


def _file(action: Mapping[str, Any]) -> str:
    """Return the path of a file and its deletion vector; protocol, "Deletion Vectors"."""
    path = _ROOT.sub(r"\1:/", action["path"])
    vector = action.get("deletionVector")
    if not vector:
        return path
    return f"{path} {vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"
