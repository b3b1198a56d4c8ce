"""The commands that read: `inspect`, how a table's rows are laid out, and `history`, its merges.

Tables on a disk, and their commits, are read from the files of the log: no Spark has to start.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Shown

from deltaweave.cli.options import (
    FAILED,
    Catalog,
    Conf,
    Json,
    Plot,
    TableName,
    Verbose,
    check_plot,
    fail,
    print_json,
    reading_disk,
    working,
)
from deltaweave.errors import NOTHING_DONE, NotADeltaTableError, TableNotFoundError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.types import StructType

    from deltaweave.delta.log import FileLayout, KeyOverlap, TableSnapshot


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_CONFIGURING = frozenset({"HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"})
_SETS_PROPERTIES = "spark.sql."  # in PYSPARK_SUBMIT_ARGS, or Java's options
_VERSION = re.compile(r"\d{20}\.json")
# Files of commits that a catalog keeps, which has the last word on them. Delta makes it anywhere.
_CATALOG_COMMITS = "_staged_commits"
_MEBIBYTE = 1 << 20
# With more, the ranges of the columns that `--key` names are compared alone.
_FILES_OF_ALL_COLUMNS = 10_000

# A metric of the history, and what its column is called.
_METRIC_COLUMNS = {
    "numTargetRowsUpdated": "updated",
    "numTargetRowsInserted": "inserted",
    "numTargetRowsDeleted": "deleted",
    "numTargetRowsCopied": "copied",
    "numTargetFilesRemoved": "files removed",
    "numTargetFilesAdded": "files added",
}
_TIME_METRIC = "executionTimeMs"

# A metric of the history, how the legend calls it, and its color.
_PLOTTED_ROWS = (
    ("numTargetRowsUpdated", "updated", "#5b3fd6"),
    ("numTargetRowsInserted", "inserted", "#0e7490"),
    ("numTargetRowsDeleted", "deleted", "#d1495b"),
    ("numTargetRowsCopied", "copied unchanged", "#cfd3dc"),
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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


def table_on_disk(table: str, conf: Sequence[str] = (), catalog: str | None = None) -> Path | None:
    """Return the directory of a table on a disk; None if it takes Spark to find it or read its log.

    Args:
        table: Its path, `file:` URI or name.
        conf: Spark settings of the command; with any, Spark decides what a path or name means.
        catalog: The catalog of names without one, if the command names it.

    Raises:
        NotADeltaTableError: The path has no table.
        TableNotFoundError: It is a name, and Spark would have no catalog that has tables.
        OSError: The log cannot be read.
    """
    given = table.removeprefix("delta.`").rstrip("`") if table.startswith("delta.`") else table
    path = re.sub(r"^file:(//)?(?=/)", "", given)
    if not {"/", "`"} & set(table) and not conf and catalog is None and _has_no_catalog():
        raise TableNotFoundError(
            "no table has this name, because no catalog is configured here.",
            table=table,
            operation="opening",
            state=NOTHING_DONE,
            hint=f"A path has a slash, as ./{table} has. The catalog of names is configured by "
            "--conf, or in the spark-defaults.conf of SPARK_CONF_DIR.",
        )
    if "/" not in path or "`" in path or _SCHEME.match(path):
        return None
    # Hadoop's configuration may mean another file system by a path that names none.
    if path == given and (conf or _CONFIGURING & os.environ.keys()):
        return None
    log = Path(path, "_delta_log")
    if log.is_dir():
        return None if any(log.glob(f"{_CATALOG_COMMITS}/*")) else log.parent
    raise NotADeltaTableError.at(table)


def _has_no_catalog() -> bool:
    """Return whether Spark, once started, would have only its own catalog, which is empty then.

    A catalog may be configured by an environment variable, a file beside PySpark, or the session
    that this process has.
    """
    if _running_session() or _CONFIGURING & os.environ.keys():
        return False
    if any(_SETS_PROPERTIES in value for value in os.environ.values()):
        return False
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return False
    return not (Path(found.origin).parent / "conf").exists()


def _running_session() -> bool:
    pyspark = sys.modules.get("pyspark")  # importing it takes a while
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def commits_on_disk(
    table: str, conf: Sequence[str] = (), catalog: str | None = None
) -> Iterator[CommitOnDisk] | None:
    """Return the commits of a table, the newest first; None if it takes Spark to read them.

    Args:
        table: Its path, `file:` URI or name.
        conf: As `table_on_disk` takes it.
        catalog: As `table_on_disk` takes it.

    Raises:
        NotADeltaTableError: The path has no table.
        TableNotFoundError: It is a name, and no catalog is configured.
        OSError: The log cannot be read.
    """
    directory = table_on_disk(table, conf, catalog)
    if directory is None:
        return None
    log = directory / "_delta_log"
    files = [each for each in log.iterdir() if _VERSION.fullmatch(each.name)]
    return map(_read_commit, sorted(files, reverse=True)) if files else None


def _read_commit(file: Path) -> CommitOnDisk:
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


@dataclass(frozen=True)
class Inspection:
    """A version of a table, as its log describes it.

    Attributes:
        location: Where the table's data is.
        version: The version.
        partition_columns: The names of the partition columns.
        layout: How rows are spread over files.
        indexed_column: The column of the key index, or None.
        files_with_floating_bounds: Above 0, `deltaweave maintain` rewrites them; None if tasks
            cannot read footers.
        key_overlaps: How the files' ranges of the compared columns overlap.
        sizes: The number of files by the power of two at which their sizes begin; empty unless
            they are plotted.
    """

    location: str
    version: int
    partition_columns: list[str]
    layout: FileLayout
    indexed_column: str | None
    files_with_floating_bounds: int | None
    key_overlaps: list[KeyOverlap]
    sizes: dict[int, int]

    def facts(self, table: str) -> dict[str, Any]:
        """Return the numbers in the order in which they are printed."""
        files = self.layout.files
        return {
            "table": table,
            "location": self.location,
            "version": self.version,
            "partition_columns": self.partition_columns,
            **asdict(self.layout),
            "mean_file_bytes": self.layout.size_in_bytes // files if files else 0,
            "indexed_column": self.indexed_column,
            "files_with_floating_bounds": self.files_with_floating_bounds,
        }


def inspect(  # noqa: PLR0913 - options of the command
    table: TableName,
    key: Annotated[
        list[str],
        typer.Option(
            help="A column whose ranges in the files are compared; repeatable.", metavar="COLUMN"
        ),
    ] = [],  # noqa: B006  # typer reads it and hands on a list of its own
    small: Annotated[
        float, typer.Option(help="Files below this many MiB count as small.", min=0)
    ] = 16,
    plot: Plot = None,
    conf: Conf = [],  # noqa: B006  # as above
    catalog: Catalog = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print how the rows of a table are spread over its files, by the log.

    For a table on a disk, the log is read without Spark.

    Files with floating bounds are those of earlier releases by whose footers Spark may miss rows
    with NaN; `maintain` rewrites them.
    """
    check_plot(plot)
    small_bytes = int(small * _MEBIBYTE)
    with reading_disk(table):
        found = inspected_on_disk(table, key, small_bytes, conf, catalog)
    if found is None:
        with working("Reading the log", conf, catalog, verbose=verbose) as spark:
            found = inspected_by_spark(spark, table, key, small_bytes, plotted=plot is not None)
    if plot is not None:
        plot_files(found.sizes, small_bytes, table, plot)
    facts = found.facts(table)
    if json:
        overlaps = [asdict(overlap) for overlap in found.key_overlaps]
        print_json({**facts, "key_overlaps": overlaps})
        return
    shown = Shown("", "", show_header=False)
    if facts["files_with_floating_bounds"] is None:
        facts["files_with_floating_bounds"] = "not known"
    for name, value in facts.items():
        shown.add_row(name.replace("_", " "), _as_text(value))
    console = Console(highlight=False)
    console.print(shown)
    if found.key_overlaps:
        console.print(_as_table(found.key_overlaps))


def inspected_on_disk(
    table: str, key: list[str], small_bytes: int, conf: list[str], catalog: str | None = None
) -> Inspection | None:
    """Inspect a table by the files of its log; None if Spark has to read them."""
    directory = table_on_disk(table, conf, catalog)
    if directory is None:
        return None
    from deltaweave.delta.log import (
        bounded_columns,
        key_overlaps_in_log,
        layout_in_log,
        newest_on_disk,
    )
    from deltaweave.engine.file_upkeep import count_floating_bounds_on_disk

    version = newest_on_disk(directory)
    if version is None:
        return None
    metadata, adds = version.metadata, version.adds
    columns = key or _bounded_columns(metadata.schema, len(adds))
    names = bounded_columns(metadata.schema, columns, table)
    overlaps = key_overlaps_in_log(metadata, adds, names)
    if overlaps is None:
        return None
    return Inspection(
        location=version.data_path,
        version=version.version,
        partition_columns=list(metadata.partition_columns),
        layout=layout_in_log(adds, small_bytes),
        indexed_column=metadata.indexed_column,
        files_with_floating_bounds=count_floating_bounds_on_disk(version),
        key_overlaps=overlaps,
        # An empty file has no logarithm.
        sizes=Counter(max(add["size"], 1).bit_length() - 1 for add in adds),
    )


def inspected_by_spark(
    spark: SparkSession, table: str, key: list[str], small_bytes: int, *, plotted: bool
) -> Inspection:
    """Inspect the newest version of a table by Spark."""
    from deltaweave import Table

    target = Table(spark, table)
    snapshot = target.snapshot()
    layout = snapshot.layout(small_bytes)
    columns = key or _bounded_columns(snapshot.schema, layout.files)
    return Inspection(
        location=snapshot.data_path,
        version=snapshot.version,
        partition_columns=snapshot.partition_columns,
        layout=layout,
        indexed_column=target.indexed_column(),
        files_with_floating_bounds=target.count_floating_bounds(),
        key_overlaps=target.key_overlaps(columns, snapshot.version),
        sizes=_files_by_size(snapshot) if plotted else {},
    )


def _bounded_columns(schema: StructType, files: int) -> list[str]:
    """Return the columns to inspect if none is named; none in tables of many files."""
    from deltaweave.delta.log import are_bounded

    if files > _FILES_OF_ALL_COLUMNS:
        return []
    # Delta keeps statistics of the first 32 columns, by default.
    return [field.name for field in schema.fields[:32] if are_bounded(field.dataType)]


def _as_table(overlaps: list[KeyOverlap]) -> Shown:
    shown = Shown("column", box=SIMPLE_HEAD, padding=0, title="files that may hold a key")
    for name in ("mean", "most", "of", "overlapping", "no bounds"):
        shown.add_column(name, justify="right")
    for each in overlaps:
        counts = (each.most_files_per_key, each.files, each.overlapping_files)
        unknown = each.files_without_bounds
        mean = f"{each.mean_files_per_key:,.2f}"
        shown.add_row(each.column, mean, *[f"{count:,}" for count in (*counts, unknown)])
    return shown


def _files_by_size(snapshot: TableSnapshot) -> dict[int, int]:
    """Return the number of files by the power of two at which their sizes begin."""
    from pyspark.sql import functions as F

    from deltaweave.delta.jvm import grouped

    # An empty file has no logarithm.
    power = F.floor(F.log2(F.greatest("size", F.lit(1)))).cast("int").alias("power")
    counted = grouped(snapshot.files, [power], [F.count(F.lit(1)).alias("files")])
    return {row.power: row.files for row in counted.collect()}


def _as_text(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)


def history(
    table: TableName,
    limit: Annotated[int, typer.Option(help="How many of the newest merges.", min=1)] = 20,
    plot: Plot = None,
    conf: Conf = [],  # noqa: B006  # typer reads it and hands on a list of its own
    catalog: Catalog = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the merges of a table with their metrics, the newest first.

    For a table on a disk, the log is read without Spark.
    """
    check_plot(plot)
    merges: Sequence[CommitOnDisk | Row] | None = None
    with reading_disk(table):
        found = commits_on_disk(table, conf, catalog)
        if found is not None:
            merges = list(islice((each for each in found if each.operation == "MERGE"), limit))
    if merges is None:
        from deltaweave import Table

        with working("Reading the log", conf, catalog, verbose=verbose) as spark:
            history_of_merges = Table(spark, table).history().where("operation = 'MERGE'")
            merges = history_of_merges.limit(limit).collect()
    if plot is not None:
        plot_merges([_as_json(merge) for merge in merges], table, plot)
    if json:
        print_json([_as_json(merge) for merge in merges])
        return
    if not merges:
        typer.echo(f"No merge is in the history of {table}.", err=True)
        return
    shown = Shown(box=SIMPLE_HEAD, padding=0)
    shown.add_column("version", no_wrap=True)
    shown.add_column("time", no_wrap=True)
    for name in (*_METRIC_COLUMNS.values(), "s"):
        # Two words wrap, so that the table fits 80 columns.
        shown.add_column(name, justify="right", no_wrap=" " not in name)
    for merge in merges:
        metrics = _metrics(merge)
        counts = [f"{metrics.get(name, 0):,}" for name in _METRIC_COLUMNS]
        seconds = f"{metrics.get(_TIME_METRIC, 0) / 1000:,.2f}"
        shown.add_row(str(merge.version), f"{merge.timestamp:%Y-%m-%d %H:%M}", *counts, seconds)
    Console(highlight=False).print(shown)


def _as_json(merge: CommitOnDisk | Row) -> dict[str, Any]:
    timestamp = merge.timestamp.isoformat()
    return {"version": merge.version, "timestamp": timestamp, "metrics": _metrics(merge)}


def _metrics(merge: CommitOnDisk | Row) -> dict[str, int]:
    """Return a merge's metrics under Delta's names; delta-rs writes them in snake_case."""
    from deltaweave.engine.report import NAMES_BY_ATTRIBUTE

    written = (merge.operationMetrics or {}).items()
    return {NAMES_BY_ATTRIBUTE.get(name, name): int(value) for name, value in written}


def plot_merges(merges: Sequence[Mapping[str, Any]], table: str, path: Path) -> None:
    """Draw the rows and the seconds of each merge, the oldest first.

    The merges come newest first, each with its `version` and `metrics`.
    """
    from matplotlib.ticker import MaxNLocator

    oldest_first = list(reversed(merges))
    versions = [str(merge["version"]) for merge in oldest_first]
    figure = _figure(6)
    rows, seconds = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    below = [0] * len(oldest_first)
    for metric, label, color in _PLOTTED_ROWS:
        counts = [int(merge["metrics"].get(metric, 0)) for merge in oldest_first]
        rows.bar(versions, counts, bottom=below, label=label, color=color, width=0.6)
        below = [low + count for low, count in zip(below, counts, strict=True)]
    rows.set_ylabel("rows")
    rows.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    rows.yaxis.set_major_formatter("{x:,.0f}")
    rows.set_title(f"Merges into {table}", loc="left", fontweight="bold", pad=28)
    # Above the bars, which it would hide.
    rows.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(_PLOTTED_ROWS), frameon=False)
    times = [int(merge["metrics"].get(_TIME_METRIC, 0)) / 1000 for merge in oldest_first]
    seconds.bar(versions, times, color="#8a90a0", width=0.6)
    seconds.set_ylabel("seconds")
    seconds.set_xlabel("version that the merge committed")
    for axes in (rows, seconds):
        _draw_plain_axes(axes)
    if len(versions) > 30:
        seconds.set_xticks(range(0, len(versions), len(versions) // 15))
    _save(figure, path)


def plot_files(files: Mapping[int, int], small_bytes: int, table: str, path: Path) -> None:
    """Draw how many files there are of each size; those below the limit are small.

    `files` has the number of files by the power of two at which their sizes begin.
    """
    from matplotlib.ticker import MaxNLocator

    powers = range(min(files), max(files) + 1) if files else range(0)
    figure = _figure(4)
    axes = figure.subplots()
    bars = axes.bar(
        [size_label(2**power) for power in powers],
        [files.get(power, 0) for power in powers],
        color=["#d1495b" if 2**power < small_bytes else "#5b3fd6" for power in powers],
    )
    axes.bar_label(bars, labels=[f"{files[power]:,}" if power in files else "" for power in powers])
    if len(powers) > 8:
        axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel(f"size of the file, at least; files below {size_label(small_bytes)} are red")
    axes.set_ylabel("files")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(f"Files of {table}", loc="left", fontweight="bold")
    _draw_plain_axes(axes)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """Write the chart, or end the command if its file cannot be written."""
    try:
        figure.savefig(path)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}.", FAILED)


def _figure(height: float) -> Figure:
    # Not by pyplot, which chooses a backend for this machine's screen and keeps each figure.
    from matplotlib.figure import Figure

    return Figure(figsize=(8, height), layout="constrained")


def _draw_plain_axes(axes: Axes) -> None:
    """Draw lines for the values behind the bars, and no box around them."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#e3e5ea")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def size_label(size_in_bytes: int) -> str:
    """Write a size in the largest unit that it fills, as `64 KiB`."""
    power = min(max(size_in_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size_in_bytes / 1024**power:.4g} {_UNITS[power]}"
