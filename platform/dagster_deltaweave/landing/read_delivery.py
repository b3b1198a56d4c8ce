"""Makes sure that a run applies the delivery that its tag names, and no other one.

The landing sensor tags a run with the delivery that it found, its files, and its directory. Before
the run reads it, another delivery may replace it, or replace a part of it while the first marker is
still there. If the run applied that delivery under the first one's tag, that delivery's own run
would apply it again. So the run reads all rows and keeps them, and checks the landing directory
before and after: both times it must hold the tagged delivery.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_deltaweave.landing.listing import Delivery, delivery
from dagster_deltaweave.partitions import DELIVERY_TAG, hidden_tag, written_tag
from dagster_deltaweave.storage import local_path, without_query
from deltaweave.delta.jvm import translated
from deltaweave.delta.scan import checkpointed
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LANDING = hidden_tag("deltaweave/landing")
"""Run tag with its delivery as JSON: `directory`, `marker`, `suffix`, its `identity`, and `files`.

`files` is the digest of all its files. It is missing if they could not be listed, without a marker
(the identity is then that digest), and in tags of earlier releases.
"""


def landing_tag(
    directory: str | Path, marker: str | None, found: Delivery, suffix: str = ""
) -> dict[str, str]:
    """Return the tag of a run for a delivery that was found in a landing directory."""
    tag = {"directory": directory_name(directory), "marker": marker, "identity": found.identity}
    if suffix:
        tag["suffix"] = suffix
    files = found.files
    if marker is not None and files is None:
        files = _files(directory, found.name.removesuffix(suffix), suffix)
    return {LANDING: json.dumps(tag if files is None else {**tag, "files": files})}


def directory_name(directory: str | Path) -> str:
    """Return the name of a landing directory in run tags."""
    path = local_path(directory)
    return str(directory) if path is None else str(path.absolute())


def directory_of(tags: Mapping[str, str]) -> str:
    """Return the landing directory of the delivery in a run's tags; empty if they name none."""
    try:
        return without_query(json.loads(written_tag(tags, LANDING) or "")["directory"])
    except (KeyError, TypeError, ValueError):  # none, or a tag that was written by hand
        return ""


def _files(directory: str | Path, name: str, suffix: str) -> str | None:
    try:
        found = delivery(directory, name, None, suffix)
    except SourceError:
        return None  # one directory that cannot be listed must not stop the sensor's other runs
    return found.fingerprint if found else None


def rows_of_delivery(
    rows: DataFrame, partition: str, tags: Mapping[str, str], *, table: str
) -> DataFrame:
    """Read the rows of the delivery that a run's tags name, and keep them in Spark.

    If the tags do not say where the delivery landed, the rows are returned as they are: whoever
    tags a run by hand is responsible for what it reads.

    Args:
        rows: What the asset's function returned.
        partition: The run's partition.
        tags: The run's tags.
        table: The asset's table, for the error message.

    Raises:
        SourceError: Another delivery is there now, or arrived while the rows were read.
    """
    if written_tag(tags, LANDING) is None:
        return rows
    before = _look(partition, tags, table)
    with translated(table, operation="reading a delivery", otherwise=SourceError):
        kept = checkpointed(rows)
    if _look(partition, tags, table) != before:
        raise _error(partition, tags, table, "changed while it was read")
    return kept


def _look(partition: str, tags: Mapping[str, str], table: str) -> str | None:
    """The digest of the delivery's files; raises a SourceError if the tag names another one."""
    landing = json.loads(written_tag(tags, LANDING) or "")
    directory, marker, suffix = landing["directory"], landing["marker"], landing.get("suffix", "")
    found = delivery(directory, partition, marker, suffix)
    if found is None:
        raise _error(partition, tags, table, f"is no longer in {directory}")
    if found.identity != landing["identity"]:
        raise _error(partition, tags, table, "was delivered again since this run was requested")
    all_files = delivery(directory, partition, None, suffix)
    files = all_files.fingerprint if all_files else None
    if files != landing.get("files", files):
        raise _error(partition, tags, table, "has other files than when this run was requested")
    return files


def _error(partition: str, tags: Mapping[str, str], table: str, problem: str) -> SourceError:
    version = written_tag(tags, DELIVERY_TAG)
    return SourceError(
        f"the source partition {partition} of delivery {version} {problem}.",
        table=table,
        operation="reading a delivery",
        hint="The sensor requests a run for the delivery that is there once its marker is written "
        "or its sizes have settled: leave this run as it is. Where no sensor looks, tag a new run "
        "with that delivery.",
    )
