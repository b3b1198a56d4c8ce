"""What several commands take, and the session that they work in."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from deltaweave._terminal import FAILED, UNKNOWN, fail, quiet_session
from deltaweave.errors import CommitStateUnknownError, DeltaweaveError, TableNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaweave.engine.report import MergeResult


Conf = Annotated[
    list[str],
    typer.Option(help="A Spark setting as key=value; repeatable.", metavar="KEY=VALUE"),
]
Catalog = Annotated[
    str | None,
    typer.Option(
        help="The catalog of table names without one.", show_default=False, metavar="NAME"
    ),
]
# An empty metavar: typer shows `<bool>` beside a flag, as if it took a value.
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.", metavar="")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show Spark's own lines, too.", metavar="")
]

_SECONDS_BETWEEN_LOOKS = 0.5
_SHOWN_STEPS = 6  # a merge that runs again has many

Plot = Annotated[
    Path | None,
    typer.Option(help="Draw a chart into this file (.png, .svg, .pdf).", show_default=False),
]


def as_path_if_exists(given: str) -> str:
    """Resolve a path, a table's name, or the name of a directory or file here.

    >>> as_path_if_exists("sales.orders"), as_path_if_exists("/lake/orders")
    ('sales.orders', '/lake/orders')
    """
    is_plain = "/" not in given and "`" not in given
    return str(Path(given).absolute()) if is_plain and given and Path(given).exists() else given


TableName = Annotated[
    str,
    typer.Argument(
        help="A table's path (with a slash, or of a directory here) or name.",
        callback=as_path_if_exists,
    ),
]


@contextmanager
def working(
    what: str, conf: list[str], catalog: str | None, *, verbose: bool
) -> Iterator[SparkSession]:
    """Open a session; a terminal shows the steps, and an error ends the command.

    `what` names the work, e.g. "Merging". `catalog` is the session's current catalog; None leaves
    it as it is.
    """
    from deltaweave.engine.report import listening

    with Steps() as steps:
        steps.begin("Starting Spark")
        with quiet_session(conf, verbose=verbose) as spark:
            steps.begin(what)
            try:
                with _current(spark, catalog), steps.showing_tasks(spark), listening(steps.begin):
                    yield spark
            except DeltaweaveError as error:
                steps.end()
                typer.echo(error, err=True)
                code = UNKNOWN if isinstance(error, CommitStateUnknownError) else FAILED
                raise typer.Exit(code) from error


@contextmanager
def _current(spark: SparkSession, catalog: str | None) -> Iterator[None]:
    """Make a catalog the current one; a session that was there before gets its own back."""
    if catalog is None:
        yield
        return
    from deltaweave.delta.jvm import suppress_cleanup_errors, translated

    with translated(catalog, operation="looking for the catalog", otherwise=TableNotFoundError):
        before = spark.catalog.currentCatalog(), spark.catalog.currentDatabase()
        spark.catalog.setCurrentCatalog(catalog)
    try:
        yield
    finally:
        # The command's outcome is known by now, and its own session ends.
        with suppress_cleanup_errors("the current catalog"):
            spark.catalog.setCurrentCatalog(before[0])
            if spark.catalog.currentDatabase() != before[1]:
                spark.catalog.setCurrentDatabase(before[1])


@contextmanager
def reading_disk(table: str) -> Iterator[None]:
    """End the command at what is wrong with a table whose log is read without Spark."""
    try:
        yield
    except DeltaweaveError as error:
        fail(str(error), FAILED)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        fail(f"The log of {table} cannot be read: {reason}.", FAILED)


def print_result(result: MergeResult, *, json: bool) -> None:
    """Print what a merge did: a few lines, or JSON."""
    if not json:
        print(result)
        return
    print_json(
        {
            "version": result.version,
            "strategy": result.strategy,
            "metrics": dict(result.metrics),
            "num_source_rows_unaffected": result.num_source_rows_unaffected,
            "attempts": result.attempts,
            "commit_attempts": result.commit_attempts,
            "files_redone": result.files_redone,
            "commit_time_ms": result.commit_time_ms,
            "warnings": list(result.warnings),
        }
    )


def print_json(value: Any) -> None:
    """Print a value as JSON, on lines that people can read as well."""
    print(json.dumps(value, indent=2, default=str, ensure_ascii=False))


class Steps:
    """The steps of a command; one runs at a time.

    The lines are gone when the block ends. Nothing is written unless the standard error is a
    terminal.
    """

    def __init__(self) -> None:
        console = _console()
        self._changing = threading.Lock()
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(show_speed=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not sys.stderr.isatty(),
            redirect_stdout=False,  # programs read it
        )

    def __enter__(self) -> Steps:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Take the lines away."""
        self._progress.stop()

    def begin(self, what: str) -> None:
        """End the step that runs, if there is one, and begin another.

        `what` names it, e.g. "Starting Spark", or is the status of an engine's phase.
        """
        step = what.removeprefix("MERGE operation - ")
        with self._changing:
            for task in self._progress.tasks:
                if not task.finished:
                    self._progress.update(task.id, total=1, completed=1)
            for task in self._progress.tasks[: 1 - _SHOWN_STEPS]:
                self._progress.update(task.id, visible=False)
            self._progress.add_task(step[:1].upper() + step[1:], total=None)

    @contextmanager
    def showing_tasks(self, spark: SparkSession) -> Iterator[None]:
        """Show in the block how many of the tasks of Spark's running stages are done."""
        if self._progress.disable:
            yield
            return
        ended = threading.Event()
        looking = threading.Thread(target=self._look, args=(spark, ended), daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()

    def _look(self, spark: SparkSession, ended: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            try:
                running = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            except Exception:  # Spark ended: whoever uses it says so
                return
            known = [stage for stage in running if stage is not None]
            total = sum(stage.numTasks for stage in known)
            done = sum(stage.numCompletedTasks for stage in known)
            for task in self._progress.tasks:
                if not task.finished:
                    # A step whose tasks are all done has not ended.
                    self._progress.update(
                        task.id, total=total + 1 if total else None, completed=done
                    )


def _console() -> Console:
    """Return standard error as a terminal, even while the session redirects the process's own."""
    if not sys.stderr.isatty():
        return Console(stderr=True)
    encoding, errors = sys.stderr.encoding, sys.stderr.errors
    copy = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=encoding, errors=errors)
    return Console(file=copy)
