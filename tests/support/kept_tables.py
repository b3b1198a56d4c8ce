"""Tables of merge cases are written once, kept in the repository, and copied from there.

Writing one takes as long as a merge does. `make record-oracle` writes them again; a table that is
not kept, as of a new case, is written where it is asked for.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests import builders
from tests.builders import write_table

IS_LIVE = os.environ.get("DELTAWEAVE_ORACLE") == "live"
"""Whether Delta's MERGE is run, on new tables, rather than looked up."""

RELEASES = {"pyspark": version("pyspark"), "delta-spark": version("delta-spark")}

_RECORDED = Path(__file__).parents[1] / "merge_cases/recorded_outcomes/copy_on_write.json"
IS_ANOTHER_PAIR = (
    os.environ.get("DELTAWEAVE_MATRIX") == "1"
    and json.loads(_RECORDED.read_text())["releases"] != RELEASES
)
"""Whether `make test-matrix` runs another pair of Spark and Delta than the recorded one.

What its own MERGE does is right, whatever a case expects of the recorded pair. In `make test`,
other releases than the recorded ones are an error.
"""

_ARCHIVE = Path(__file__).parents[1] / "merge_cases/recorded_outcomes/tables.zip"


def copy_or_write_table(spark: SparkSession, path: Path, table: Mapping[str, Any]) -> None:
    """Make the table that `write_table` writes, from the archive if it is there."""
    name = digest(table)
    if IS_LIVE or name not in _kept():
        write_table(spark, str(path), **table)
        return
    with zipfile.ZipFile(_ARCHIVE) as archive:
        for member in _kept()[name]:
            target = path / member.removeprefix(f"{name}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))


def keep(tables: Mapping[str, Path], *, beside_others: bool = False) -> None:
    """Write these tables to the archive, each under its digest.

    Args:
        tables: The tables' directories by their digests.
        beside_others: Whether what the archive holds stays.
    """
    held = _kept() if beside_others else {}
    with zipfile.ZipFile(_ARCHIVE, "a" if beside_others else "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(each for each in tables.items() if each[0] not in held):
            for file in sorted(each for each in path.rglob("*") if each.is_file()):
                if file.match(".*.crc"):  # Hadoop's sum of another file
                    continue
                archive.write(file, f"{name}/{file.relative_to(path)}")


def digest(table: Mapping[str, Any]) -> str:
    """Return what distinguishes a table from others, and from one written otherwise."""
    return digest_as_written(repr((table, RELEASES)))


def digest_as_written(described: str) -> str:
    """Return what distinguishes a description, and how its table was written."""
    text = described + inspect.getsource(builders)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def _kept() -> dict[str, list[str]]:
    """The archive's members by the digest of their table."""
    if not _ARCHIVE.exists():
        return {}
    members: dict[str, list[str]] = {}
    with zipfile.ZipFile(_ARCHIVE) as archive:
        for member in archive.namelist():
            members.setdefault(member.split("/")[0], []).append(member)
    return members
