"""The command `inspect`: how the rows of a table are laid out."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Shown

from deltaweave._terminal import check_plot
from deltaweave.cli.charts import plot_files
from deltaweave.cli.commits import table_on_disk
from deltaweave.cli.options import (
    Catalog,
    Conf,
    Json,
    Plot,
    TableName,
    Verbose,
    print_json,
    reading_disk,
    working,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from deltaweave.delta.log import FileLayout, KeyOverlap, TableSnapshot

_MEBIBYTE = 1 << 20
# With more, the ranges of the columns that `--key` names are compared alone.
_FILES_OF_ALL_COLUMNS = 10_000


@dataclass(frozen=True)
class _Inspection:
    """What a version's log says.

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


def inspect(
    table: TableName,
    key: Annotated[
        list[str],
        typer.Option(help="A column whose ranges in the files are compared; repeatable."),
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
        found = _on_disk(table, key, small_bytes, conf)
    if found is None:
        with working("Reading the log", conf, catalog, verbose=verbose) as spark:
            found = _by_spark(spark, table, key, small_bytes, plotted=plot is not None)
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


def _on_disk(table: str, key: list[str], small_bytes: int, conf: list[str]) -> _Inspection | None:
    """Read the files of the log; None if Spark has to read them."""
    directory = table_on_disk(table, conf)
    if directory is None:
        return None
    from deltaweave.delta.log import (
        bounded_columns,
        key_overlaps_in_log,
        layout_in_log,
        newest_on_disk,
    )
    from deltaweave.engine.floating_bounds import count_floating_bounds_on_disk

    version = newest_on_disk(directory)
    if version is None:
        return None
    metadata, adds = version.metadata, version.adds
    columns = key or _bounded_columns(metadata.schema, len(adds))
    names = bounded_columns(metadata.schema, columns, table)
    overlaps = key_overlaps_in_log(metadata, adds, names)
    if overlaps is None:
        return None
    return _Inspection(
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


def _by_spark(
    spark: SparkSession, table: str, key: list[str], small_bytes: int, *, plotted: bool
) -> _Inspection:
    """Ask Delta."""
    from deltaweave import Table

    target = Table(spark, table)
    snapshot = target.snapshot()
    layout = snapshot.layout(small_bytes)
    columns = key or _bounded_columns(snapshot.schema, layout.files)
    return _Inspection(
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
    """The columns that are looked at if none is named; none in tables of many files."""
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
    """The number of files by the power of two at which their sizes begin."""
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
