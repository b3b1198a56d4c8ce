"""Lists of a table's data files, read as Arrow tables and not object by object."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import actions
from deltaweave.delta.log.actions import encoder
from deltaweave.delta.log.file_paths import absolute_location, location_in
from deltaweave.delta.log.num_records import (
    Statistics,
    num_physical_rows,
    num_physical_rows_column,
    parsed,
)

if TYPE_CHECKING:
    import numpy
    import pyarrow
    from pyspark.sql import SparkSession


# Files in one query, which holds them once more as rows and in its tasks: some 100 MB of a driver.
_FILES_OF_A_QUERY = 100_000


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Files of a list for which a boolean mask is true."""

    of: FileList
    mask: numpy.ndarray


@dataclass(frozen=True)
class FileList:
    """Data files of one snapshot: a Scala Seq of AddFile, and what Python needs to know of them.

    Attributes:
        spark: The session.
        listed: The AddFiles, or where they are chosen from.
        data_path: Where the table's data is.
        have_statistics: Whether they have all of their statistics. Delta's data skipping leaves
            statistics out of its lists.
    """

    spark: SparkSession
    listed: JavaObject | _Chosen
    data_path: str
    have_statistics: bool = False

    @staticmethod
    def of_actions(spark: SparkSession, adds: list[actions.Action], data_path: str) -> FileList:
        """Build a list of new files from their AddFiles as JSON, which stay unchanged."""
        made = actions.from_json(spark, "actions.AddFile", adds)
        files = FileList(spark, jvm_.seq_of(jvm_.jvm(spark), made), data_path)
        if len(adds) <= actions.FEW:
            files.__dict__["adds"] = adds
        return files

    @cached_property
    def files(self) -> JavaObject:
        """The AddFiles; those of a part of a list are selected on first use."""
        if isinstance(self.listed, _Chosen):
            chosen = self.listed
            return jvm_.select_where(jvm_.jvm(self.spark), chosen.of.files, chosen.mask)
        return self.listed

    def none(self) -> FileList:
        """Return an empty list of files of the same table."""
        nothing = jvm_.seq(jvm_.jvm(self.spark), [])
        files = FileList(self.spark, nothing, self.data_path)
        files.__dict__["rows"] = self.rows.slice(0, 0)
        return files

    @cached_property
    def adds(self) -> list[actions.Action] | None:
        """The AddFiles as the log has them, in order; None if there are many."""
        few = len(self) <= actions.FEW
        adds: list[actions.Action] | None = actions.to_json(self.spark, self.files) if few else None
        return adds

    @cached_property
    def statistics(self) -> list[Statistics] | None:
        """The statistics of the files as text, in order; None if there are many files."""
        return None if self.adds is None else [parsed(add.get("stats")) for add in self.adds]

    @cached_property
    def rows(self) -> pyarrow.Table:
        """One row per file, in the order of the Seq.

        Columns: `path` (string, as the log spells it), `location` (string, absolute and percent-
        decoded), `size` (int64, bytes), `modificationTime` (int64, ms), `partition` (string, the
        partition values as JSON), `num_records` (int64, rows not marked deleted; null where the
        statistics lack them), `has_vector` (boolean, whether rows are marked deleted), `num_marked`
        (int64, how many).
        """
        import pyarrow as pa

        if self.adds is None or self.statistics is None:
            return self._query({})
        schema = pa.schema(
            {
                "path": pa.string(),
                "location": pa.string(),
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "partition": pa.string(),
                "num_records": pa.int64(),
                "has_vector": pa.bool_(),
                "num_marked": pa.int64(),
            }
        )
        rows = map(self._row, self.adds, self.statistics)
        return pa.Table.from_pylist(list(rows), schema)

    def _row(self, add: actions.Action, statistics: Statistics) -> dict[str, Any]:
        vector = add.get("deletionVector")
        marked = vector["cardinality"] if vector else 0
        physical = num_physical_rows(statistics)
        return {
            "path": add["path"],
            "location": absolute_location(add["path"], self.data_path),
            "size": add["size"],
            "modificationTime": add["modificationTime"],
            "partition": json.dumps(add["partitionValues"]),
            "num_records": None if physical is None else physical - marked,
            "has_vector": vector is not None,
            "num_marked": marked,
        }

    @cached_property
    def row_counts(self) -> numpy.ndarray:
        """The number of rows in each file, as floats; NaN if unknown."""
        counts: numpy.ndarray = self.rows["num_records"].to_numpy().astype(float)
        return counts

    def rows_with(self, columns: dict[str, Column]) -> pyarrow.Table:
        """Return `rows` with further columns computed from AddFile's fields, by one query."""
        table = self._query(columns)
        self.__dict__.setdefault("rows", table.drop_columns(list(columns)))
        return table

    def _query(self, further: dict[str, Column]) -> pyarrow.Table:
        if (size := len(self)) > _FILES_OF_A_QUERY:
            import pyarrow as pa

            files, step = self.files.toVector(), _FILES_OF_A_QUERY
            slices = (files.slice(begin, begin + step) for begin in range(0, size, step))
            parts = [FileList(self.spark, each, self.data_path)._query(further) for each in slices]
            return pa.concat_tables(parts)
        deleted = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
        num_records = num_physical_rows_column() - deleted
        rows = self.data_frame.select(
            "path",
            location_in(self.data_path).alias("location"),
            "size",
            "modificationTime",
            jvm_.json_text(F.col("partitionValues"), with_nulls=True).alias("partition"),
            num_records.alias("num_records"),
            F.col("deletionVector").isNotNull().alias("has_vector"),
            deleted.alias("num_marked"),
            *[value.alias(name) for name, value in further.items()],
        )
        return jvm_.collected(rows)

    @property
    def data_frame(self) -> DataFrame:
        """The files as a DataFrame of AddFile's fields; it is local data and needs no scan."""
        return jvm_.data_frame(self.spark, self._dataset.toDF())

    @property
    def _dataset(self) -> JavaObject:
        return self.spark._jsparkSession.createDataset(self.files, encoder(self.spark, "addFile"))

    def __len__(self) -> int:
        return self.rows.num_rows if "rows" in self.__dict__ else self._size

    @cached_property
    def _size(self) -> int:
        return int(self.files.size())

    @cached_property
    def size_in_bytes(self) -> int:
        """Total size of the files, in bytes."""
        import pyarrow.compute as pc

        return pc.sum(self.rows["size"]).as_py() or 0

    @cached_property
    def num_partitions(self) -> int:
        """How many partitions the files are in; 0 for a table that is not partitioned."""
        texts = self.rows["partition"].unique().to_pylist()
        # Writers, and Scala's maps, have the keys in orders of their own.
        partitions = {tuple(sorted(json.loads(text).items())) for text in texts}
        return len(partitions - {()})

    @cached_property
    def num_records(self) -> int | None:
        """The number of rows in the files, or None if a file has no statistics."""
        import pyarrow.compute as pc

        counts = self.rows["num_records"]
        return None if counts.null_count else pc.sum(counts).as_py() or 0

    @property
    def num_vectors(self) -> int:
        """How many of the files have a deletion vector."""
        import pyarrow.compute as pc

        return int(pc.sum(self.rows["has_vector"]).as_py() or 0)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files' paths as the log spells them."""
        return tuple(self.rows["path"].to_pylist())

    def and_also(self, others: FileList) -> FileList:
        """Return these files and others of the same table."""
        return FileList(self.spark, self.files.appendedAll(others.files), self.data_path)

    def where(self, mask: numpy.ndarray) -> FileList:
        """Select the files for which the boolean mask is true."""
        if mask.all():
            return self
        files = FileList(
            self.spark, _Chosen(self, mask.copy()), self.data_path, self.have_statistics
        )
        if self.__dict__.get("adds") is not None:
            files.__dict__["adds"] = list(compress(self.__dict__["adds"], mask))
        files.__dict__["rows"] = self.rows.filter(mask)  # that saves a Spark query
        return files

    def among(self, paths: Collection[str]) -> FileList:
        """Select the files with these paths, as the log spells them."""
        import numpy as np

        return self.where(np.array([path in paths for path in self.paths], dtype=bool))

    def but_for(self, paths: Collection[str]) -> FileList:
        """Select the files without these paths, as the log spells them."""
        import numpy as np

        return self.where(np.array([path not in paths for path in self.paths], dtype=bool))

    def without_vectors(self) -> FileList:
        """Return the files with all of their rows, those marked deleted included."""
        vector = F.lit(None).cast(self.data_frame.schema["deletionVector"].dataType)
        whole = self.data_frame.withColumn("deletionVector", vector)
        files = getattr(whole._jdf, "as")(encoder(self.spark, "addFile")).collectAsList()
        return FileList(self.spark, jvm_.seq_of(jvm_.jvm(self.spark), files), self.data_path)

    def removals(self, *, data_change: bool = True) -> JavaObject:
        """Build a Java list of the RemoveFile actions that take these files out of the table.

        Args:
            data_change: Whether the table's rows change by that.

        They have the fields that the protocol asks for (section "Add File and Remove File"):
        partition values, size, tags and deletion vector, as AddFile.remove does.
        """
        if self.adds is not None:
            now_ms = time.time_ns() // 1_000_000
            removed = [
                {**actions.removal(add, now_ms), "dataChange": data_change} for add in self.adds
            ]
            return actions.from_json(self.spark, "actions.RemoveFile", removed)
        adds = self.data_frame
        removes = adds.select(
            *[name for name in actions.KEPT_BY_REMOVAL if name in adds.columns],
            # One timestamp for all, taken on the driver.
            F.unix_millis(F.current_timestamp()).alias("deletionTimestamp"),
            F.lit(data_change).alias("dataChange"),
            F.lit(True).alias("extendedFileMetadata"),
        )
        return getattr(removes._jdf, "as")(encoder(self.spark, "removeFile")).collectAsList()
