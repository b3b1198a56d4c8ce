"""Records what Delta's own MERGE does in each case, and the tables: `make record-oracle`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from rich.progress import track

import deltaweave
from tests import kept_tables
from tests.conftest import TINY_DATA
from tests.merge_cases import CASES
from tests.merge_cases.case import Layout, MergeCase
from tests.merge_cases.recorded import LAYOUTS, record
from tests.oracles import Outcome, Stage


def main() -> None:
    """Run Delta's MERGE on each recorded layout of each case, on tables written anew."""
    assert kept_tables.IS_LIVE, "run it as DELTAWEAVE_ORACLE=live, as make record-oracle does"
    tables: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as folder:
        warehouse = {"spark.sql.warehouse.dir": f"{folder}/warehouse"}
        spark = deltaweave.local_session(**TINY_DATA, **warehouse)
        for layout in LAYOUTS:
            record(layout, list(_outcomes(spark, layout, Path(folder) / str(layout), tables)))
        kept_tables.keep(tables)
        spark.stop()


def _outcomes(
    spark: SparkSession, layout: Layout, folder: Path, tables: dict[str, Path]
) -> Iterator[tuple[MergeCase, Outcome]]:
    """What Delta's MERGE does in all cases that have a table of this layout; adds to `tables`."""
    clear_cache = spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache
    cases = [case for case in CASES if not layout.refused_by(case)]
    for case in track(cases, str(layout)):
        stage = Stage(spark, case, folder / case.name, layout)
        tables[kept_tables.digest(layout.of(case).table())] = stage.original
        yield case, stage.by_oracle()
        clear_cache()


if __name__ == "__main__":
    main()
