"""The benchmark's tables: generated once, kept in a directory, cloned for each run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assets import tpcds
from deltaweave.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET_FILES = 28
_SEED = 20210929  # any; the same rows are drawn on every machine

_A_PARTITION_FOR_EACH_FILE = {
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
}

KeyType = Literal["double", "integer"]

MERGE_ON_READ, COPY_ON_WRITE = "merge-on-read", "copy-on-write"
MODES = (MERGE_ON_READ, COPY_ON_WRITE)
"""How a target writes changes: with deletion vectors, and without."""


@dataclass(frozen=True)
class Fractions:
    """Which rows a source takes from the target.

    Attributes:
        files_matched: The fraction of the target's files from which rows are taken (at least one
            file).
        rows_matched: The fraction of those files' rows that the source has under the same key.
        rows_not_matched: The fraction of those files' rows that the source has under a new key.
    """

    files_matched: float
    rows_matched: float
    rows_not_matched: float

    def __str__(self) -> str:
        shares = (self.files_matched, self.rows_matched, self.rows_not_matched)
        return "/".join(f"{share:g}" for share in shares)


@dataclass(frozen=True)
class Workspace:
    """Where the tables of one scale are kept.

    Attributes:
        spark: The session that writes them.
        directory: The directory for all scales, absolute.
        scale: TPC-DS scale factor; 1 gives 71,763 rows.
        deletion_vectors: Whether targets have deletion vectors enabled.
        key_type: The type of the key columns in the sources of Delta's cases. Delta's benchmark
            draws new keys as fractions, so its keys are doubles; `"integer"` gives keys of the
            table's type.
        log_files: How many files the log of `many_files_log` names.
    """

    spark: SparkSession
    directory: Path
    scale: float
    deletion_vectors: bool
    key_type: KeyType = "double"
    log_files: int = 100_000

    @property
    def mode(self) -> str:
        """How targets write changes: one of `MODES`."""
        return MERGE_ON_READ if self.deletion_vectors else COPY_ON_WRITE

    def made_once(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the path of what `make` writes to the path that it gets, once for all runs."""
        path = self.directory / f"scale-{self.scale:g}" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Under a new name, because Delta caches the tables it saw by their paths.
            with tempfile.TemporaryDirectory(dir=self.directory, prefix=".staging-") as staging:
                made = Path(staging) / "made"
                make(made)
                made.rename(path)
        return path

    def target(self, name: str, write: Callable[[Path], None]) -> Path:
        """Return a target that `write` makes, one with deletion vectors and one without."""
        vectors = "on" if self.deletion_vectors else "off"
        return self.made_once(f"{name}-vectors-{vectors}", write)

    def write_delta(
        self,
        rows: DataFrame,
        path: Path,
        *,
        partition_by: Sequence[str] = (),
        mode: str = "error",
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write rows as a Delta table with or without deletion vectors.

        If the rows are read from files, one file is written for each of them. A new table gets
        these further properties.
        """
        writer = rows.write.format("delta").mode(mode).partitionBy(*partition_by)
        if mode != "append":
            enabled = str(self.deletion_vectors).lower()
            writer = writer.options(**{"delta.enableDeletionVectors": enabled, **properties})
        with session_options(self.spark, _A_PARTITION_FOR_EACH_FILE):
            writer.save(str(path))

    def parts(self) -> list[Path]:
        """Return the generated rows in their order, as Parquet files of equal row counts."""
        directory = self.made_once("parts", self._generate_parts)
        return sorted(directory.glob("*.parquet"))

    def web_returns(self) -> Path:
        """Return the target of Delta's cases: not partitioned, with a file for each part."""
        return self.target("web_returns", lambda path: self.write_delta(self.returns(), path))

    def returns(self) -> DataFrame:
        """Return the generated rows."""
        return self.spark.read.parquet(*map(str, self.parts()))

    def web_returns_source(self, fractions: Fractions, key_type: KeyType) -> Path:
        """Return a source with rows of web_returns, as a Delta table."""
        name = f"source-{str(fractions).replace('/', '-')}-{key_type}"

        def make(path: Path) -> None:
            staged = path.with_name("rows.parquet")
            rows = source_rows(self.parts(), fractions, key_type)
            # Small row groups let Spark read and write the source with all cores.
            pq.write_table(rows, staged, row_group_size=65_536)
            self.spark.read.parquet(str(staged)).write.format("delta").save(str(path))

        return self.made_once(name, make)

    def _generate_parts(self, path: Path) -> None:
        path.mkdir()
        split(tpcds.generate(path.parent, self.scale), path, TARGET_FILES)


@contextmanager
def session_options(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set these options of the session, and restore the earlier values afterwards."""
    before = {name: spark.conf.get(name, None) for name in options}
    try:
        for name, value in options.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def split(generated: Path, directory: Path, files: int) -> None:
    """Split the rows of a generated file, in order, into Parquet files of equal row counts.

    Args:
        generated: A file that the generator made.
        directory: An existing directory for `part-00.parquet` and so on.
        files: The number of files; row counts differ by one at most.
    """
    with generated.open("rb") as lines:
        rows = sum(1 for _ in lines)
    batches = tpcds.batches(generated)
    batch = None
    for number in range(files):
        wanted = rows * (number + 1) // files - rows * number // files
        path = directory / f"part-{number:02}.parquet"
        with pq.ParquetWriter(path, tpcds.schema()) as writer:
            while wanted > 0:
                if batch is None or batch.num_rows == 0:
                    batch = next(batches)
                taken = batch.slice(0, wanted)
                writer.write_batch(taken)
                wanted -= taken.num_rows
                batch = batch.slice(taken.num_rows)


def source_rows(parts: Sequence[Path], fractions: Fractions, key_type: KeyType) -> pa.Table:
    """Draw the rows of a merge source from the parts that the target's files were written from.

    New keys are fractions below 1 in both columns, as in Delta's benchmark. If keys are integers,
    they are order numbers above all others. Each fraction counts the rows in the drawn files and is
    rounded; the two draws are independent of each other.

    Args:
        parts: Parquet files of web_returns.
        fractions: The fractions of files and rows.
        key_type: The type of the source's key columns.

    Returns:
        The matched rows in the order of the parts, then the others.
    """
    random = Random(_SEED)
    drawn = sorted(random.sample(parts, max(1, round(fractions.files_matched * len(parts)))))
    matched = _draw(drawn, fractions.rows_matched, random)
    not_matched = _draw(drawn, fractions.rows_not_matched, random)
    if key_type == "double":
        for name in tpcds.KEY:
            keys = pa.array([random.random() for _ in range(len(not_matched))], pa.float64())
            matched = _replaced(matched, name, matched[name].cast(pa.float64()))
            not_matched = _replaced(not_matched, name, keys)
    else:
        name = tpcds.KEY[0]
        first = _highest(parts, name) + 1
        orders = pa.array(range(first, first + len(not_matched)), matched[name].type)
        not_matched = _replaced(not_matched, name, orders)
    return pa.concat_tables([matched, not_matched])


def _draw(parts: Sequence[Path], fraction: float, random: Random) -> pa.Table:
    """Draw a fraction of all rows in the parts; only one part is in memory at a time."""
    counts = [pq.read_metadata(part).num_rows for part in parts]
    places = sorted(random.sample(range(sum(counts)), round(fraction * sum(counts))))
    chunks = []
    begin = 0
    for part, count in zip(parts, counts, strict=True):
        here = [place - begin for place in places if begin <= place < begin + count]
        chunks.append(pq.read_table(part).take(pa.array(here, pa.int64())))
        begin += count
    return pa.concat_tables(chunks)


def _replaced(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)


def _highest(parts: Sequence[Path], name: str) -> int:
    columns = (pq.read_table(part, columns=[name])[name] for part in parts)
    return max(int(pc.max(column).as_py()) for column in columns)


def clone(table: Path, copy: Path) -> None:
    """Create a table that shares another's data files, which writers never change in place."""

    def share(file: str, link: str) -> None:
        if "_delta_log" in Path(file).relative_to(table).parts:
            shutil.copyfile(file, link)
        else:
            _link(file, link)

    shutil.copytree(table, copy, copy_function=share)


def _link(file: str, link: str) -> None:
    try:
        os.link(file, link)
    except OSError:  # a file system without hard links
        shutil.copyfile(file, link)


def compute(rows: DataFrame) -> int:
    """Compute every column of every row, keep nothing, and return the number of rows.

    The sink "noop" would do the same, but Delta 4.4 cannot read tables with deletion vectors into
    sinks of Spark's data source V2.
    """
    return int(rows._jdf.queryExecution().toRdd().count())


def sql_name(table: Path) -> str:
    """Return the name of the Delta table at a path in SQL."""
    return f"delta.{quoted(str(table))}"
