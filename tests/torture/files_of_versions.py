"""The files of a Delta table's directory, and those that its log names; reads the log as text."""

from __future__ import annotations

import base64
import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_OF_A_LOG = re.compile(
    r"\d{20}\.(json|crc|checkpoint\.parquet|checkpoint\.[\w.-]*parquet)|_last_checkpoint"
)


@dataclass(frozen=True)
class Files:
    """The files of one table, as paths relative to its directory.

    Attributes:
        on_disk: Those that are there, without those of its log and of tables in its directory.
        named: Those that any version names.
        newest: Those that the newest version names.
        beside_log: Those in the log's directory that are no part of a log.
    """

    on_disk: frozenset[str]
    named: frozenset[str]
    newest: frozenset[str]
    beside_log: frozenset[str]

    @property
    def orphans(self) -> frozenset[str]:
        """The files that no version names."""
        return self.on_disk - self.named


def files_of(log: Path) -> Files:
    """Read a table's directory and log.

    Args:
        log: The log's directory.
    """
    table = log.parent
    inner = [other.parent for other in table.rglob("_delta_log") if other != log]
    on_disk = {
        str(path.relative_to(table))
        for path in table.rglob("*")
        if path.is_file()
        and log not in path.parents
        and not any(other in path.parents for other in inner)
    }
    named: set[str] = set()
    newest: dict[tuple[str, str], set[str]] = {}
    for version in sorted(log.glob("*.json")):
        actions = [json.loads(line) for line in version.read_text().splitlines()]
        for kind in ("remove", "cdc", "add"):
            for action in (each[kind] for each in actions if kind in each):
                files = _files(action)
                named |= files
                if kind == "add":
                    newest[_key(action)] = files
                elif kind == "remove":
                    newest.pop(_key(action), None)
    beside = {
        path.name
        for path in log.rglob("*")
        if path.is_file() and not _OF_A_LOG.fullmatch(_without_checksum(path.name))
    }
    return Files(
        frozenset(on_disk - _checksums_of(on_disk)),
        frozenset(named),
        frozenset().union(*newest.values()),
        frozenset(beside),
    )


def kind_of(path: str) -> str:
    """What kind of file it is, by its name."""
    name = Path(path).name
    if name.startswith("."):
        return "hidden " + name.rpartition(".")[2]
    if path.startswith("_change_data/"):
        return "change feed"
    return {".parquet": "data", ".bin": "deletion vector"}.get(Path(name).suffix, name)


def _key(action: dict[str, Any]) -> tuple[str, str]:
    vector = action.get("deletionVector")
    return action["path"], json.dumps(vector, sort_keys=True) if vector else ""


def _files(action: dict[str, Any]) -> set[str]:
    files = {unquote(action["path"])}
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "u":
        prefix, encoded = vector["pathOrInlineDv"][:-20], vector["pathOrInlineDv"][-20:]
        number = base64.b85decode(encoded.translate(str.maketrans(_Z85, _B85)))
        name = f"deletion_vector_{uuid.UUID(bytes=number)}.bin"
        files.add(f"{prefix}/{name}" if prefix else name)
    return files


def _without_checksum(name: str) -> str:
    return name[1:-4] if name.startswith(".") and name.endswith(".crc") else name


def _checksums_of(files: set[str]) -> set[str]:
    """The checksums that Hadoop keeps of files that are there."""
    found = set()
    for file in files:
        path = Path(file)
        of = str(path.with_name(_without_checksum(path.name)))
        if of != file and of in files:
            found.add(file)
    return found
