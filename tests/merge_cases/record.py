"""Records what Delta's own MERGE does in each case, and the tables: `make record-oracle`.

`make record-oracle CASES="NAME …"` records these cases alone, as new ones.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from rich.progress import track

import deltaweave
from tests.conftest import TINY_DATA
from tests.merge_cases import CASES, CASES_BY_NAME
from tests.merge_cases.case import Layout, MergeCase
from tests.merge_cases.recorded import LAYOUTS, record
from tests.support import kept_tables
from tests.support.oracles import Outcome, Stage


def main(names: Sequence[str]) -> None:
    """Run Delta's MERGE on new tables of these cases, or of all, in each recorded layout."""
    assert kept_tables.IS_LIVE, "run it as DELTAWEAVE_ORACLE=live, as make record-oracle does"
    cases = [CASES_BY_NAME[name] for name in names] or CASES
    tables: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as folder:
        warehouse = {"spark.sql.warehouse.dir": f"{folder}/warehouse"}
        spark = deltaweave.local_session(**TINY_DATA, **warehouse)
        for layout in LAYOUTS:
            found = list(_outcomes(spark, cases, layout, Path(folder) / str(layout), tables))
            record(layout, found, beside_others=bool(names))
        kept_tables.keep(tables, beside_others=bool(names))
        spark.stop()


def _outcomes(
    spark: SparkSession,
    cases: Sequence[MergeCase],
    layout: Layout,
    folder: Path,
    tables: dict[str, Path],
) -> Iterator[tuple[MergeCase, Outcome]]:
    """What Delta's MERGE does in those cases that have a table of this layout; adds to `tables`."""
    clear_cache = spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache
    possible = [case for case in cases if not layout.refused_by(case)]
    for case in track(possible, str(layout)):
        stage = Stage(spark, case, folder / case.name, layout)
        tables[kept_tables.digest(layout.of(case).table())] = stage.original
        yield case, stage.by_oracle()
        clear_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
