"""delta-rs (the package deltalake) as the engine's peer: merges of the same tables, without Spark.

It writes no tables with deletion vectors, so it is compared with copy on write alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from benchmarks.data.tables import COPY_ON_WRITE
from benchmarks.merge.case import Merges, Statement
from benchmarks.merge.runner import Clones, OnClones, Run, Side
from benchmarks.peers.peer import PeerError, RunningPeer

if TYPE_CHECKING:
    from deltalake.table import TableMerger
    from pyspark.sql import SparkSession

_PACKAGE = "deltalake"
_TABLE = re.compile(r"delta\.`((?:[^`]|``)+)`")
_CLAUSE = re.compile(r"WHEN ((?:NOT )?MATCHED)(?: AND (.+))? THEN (UPDATE SET \*|DELETE|INSERT \*)")
_METRICS = {
    "numTargetRowsUpdated": "num_target_rows_updated",
    "numTargetRowsDeleted": "num_target_rows_deleted",
    "numTargetRowsInserted": "num_target_rows_inserted",
}


class DeltaRs:
    """delta-rs, which is one of this program's packages."""

    name = title = "delta-rs"
    modes = (COPY_ON_WRITE,)
    versions: Mapping[str, str] = {_PACKAGE: version(_PACKAGE)}

    def install(self, directory: Path, announce: Callable[[str], object]) -> None:
        """Do nothing: the benchmarks need the package."""

    @contextmanager
    def started(self, spark: SparkSession, directory: Path) -> Iterator[RunningPeer]:
        """Yield the peer itself: it runs in this process."""
        yield self

    def side(self, clones: Clones) -> Side:
        """Return what merges into clones of the engine's table."""
        return OnClones(self.name, clones, run_merges)


DELTA_RS = DeltaRs()


def run_merges(spark: SparkSession, merges: Merges, table: Path) -> Run:  # noqa: ARG001 - as each `Side` is run
    """Run a case's statements on a clone of its target.

    The tables' logs are read before the clock starts, as the engine's are. The source's rows are
    read while it runs.

    Raises:
        PeerError: delta-rs has no form of a statement, or failed.
    """
    seconds, metrics = [], dict.fromkeys(_METRICS, 0)
    for statement in merges.statements:
        query, tables = _source(statement)
        target = DeltaTable(table)
        began = time.perf_counter()
        try:
            done = _merge(target, statement, tables, query).execute()
        except DeltaError as error:
            raise PeerError(f"delta-rs failed: {error}") from error
        seconds.append(time.perf_counter() - began)
        for ours, theirs in _METRICS.items():
            metrics[ours] += done[theirs]
    return Run(tuple(seconds), metrics)


def _source(statement: Statement) -> tuple[str, QueryBuilder]:
    """Return the query of a statement's source, and the tables that it reads."""
    paths = [path.replace("``", "`") for path in _TABLE.findall(statement.source)]
    tables = QueryBuilder()
    for number, path in enumerate(paths):
        tables.register(f"source{number}", DeltaTable(Path(path)))
    numbers = iter(range(len(paths)))
    source = _TABLE.sub(lambda _: f"source{next(numbers)}", statement.source)
    return f"SELECT * FROM {source} s", tables


def _merge(
    target: DeltaTable, statement: Statement, tables: QueryBuilder, query: str
) -> TableMerger:
    """Return the statement in delta-rs's form."""
    merger = target.merge(
        tables.execute(query),
        statement.condition,
        source_alias="s",
        target_alias="t",
        # Only a source that is not streamed prunes files by its keys: the faster of the two here.
        streamed_exec=False,
    )
    for text in statement.clauses:
        clause = _CLAUSE.fullmatch(text)
        if clause is None:
            raise PeerError(f"The benchmark does not give delta-rs this clause: {text}")
        merger = _with_clause(merger, *clause.groups())
    return merger


def _with_clause(merger: TableMerger, kind: str, condition: str | None, action: str) -> TableMerger:
    methods: Mapping[tuple[str, str], Any] = {
        ("MATCHED", "UPDATE SET *"): merger.when_matched_update_all,
        ("MATCHED", "DELETE"): merger.when_matched_delete,
        ("NOT MATCHED", "INSERT *"): merger.when_not_matched_insert_all,
    }
    given: TableMerger = methods[kind, action](condition)
    return given
