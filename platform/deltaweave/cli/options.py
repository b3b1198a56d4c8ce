"""What commands share: options, exit codes, the session that they work in, and what they print."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

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

from deltaweave._session import java_problem, secret_keys
from deltaweave.errors import CommitStateUnknownError, DeltaweaveError, TableNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaweave.engine.report import MergeResult

FAILED, MISUSED, UNKNOWN = 1, 2, 3
"""Exit codes of all commands, beside 0: 2 is for arguments that make no sense, as typer's own; 3 if
it is unknown whether a merge was committed."""

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

STARTING_SPARK = "Starting Spark, which downloads Delta's jars the first time"
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
        steps.begin(STARTING_SPARK)
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


def check_output(file: Path | None) -> None:
    """End the command if its output file cannot be written."""
    if file is not None and not os.access(file.absolute().parent, os.W_OK):
        fail(f"{file} cannot be written: its directory is missing or closed.", MISUSED)


def check_plot(plot: Path | None) -> None:
    """End the command if its chart cannot be drawn or written."""
    if plot is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        fail("--plot needs matplotlib: pip install matplotlib.", MISUSED)
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.filetypes)
    if plot.suffix.lower().removeprefix(".") not in known:
        fail(f"--plot {plot}: its suffix must be one of {', '.join(known)}.", MISUSED)
    check_output(plot)


def check_java() -> None:
    """End the command unless there is a JVM that Spark runs on."""
    problem = java_problem()
    if problem is not None:
        fail(problem, FAILED)


@contextmanager
def quiet_session(conf: Sequence[str], *, verbose: bool) -> Iterator[SparkSession]:
    """Open this process's session, or a new one that ends with the context and leaves no file.

    Args:
        conf: Spark settings on top of those of `local_session`, each as `key=value`.
        verbose: Whether Spark's own lines are shown. They are in no file.
    """
    given = dict(_setting(each) for each in conf)
    # On a disk that is full or closed, the warehouse is made where it is needed first.
    with tempfile.TemporaryDirectory(prefix="deltaweave-", ignore_cleanup_errors=True) as folder:
        options = {"spark.sql.warehouse.dir": str(Path(folder, "warehouse")), **given}
        with session(options, None if verbose else Path(folder, "spark.log")) as spark:
            yield spark


def _running() -> SparkSession | None:
    """Return the session that this process has; whoever started it ends it.

    It need not be the active one of this thread, as where the connection to the JVM was reopened.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        fail(f"--conf {key}: give it as spark.key=value.", MISUSED)
    if secret_keys({key: value}):
        fail(
            f"--conf {key}: other users of this machine can read the command line. Set it in the "
            "spark-defaults.conf of SPARK_CONF_DIR, or in the environment.",
            MISUSED,
        )
    return key, value


@contextmanager
def session(options: Mapping[str, str], log: Path | None) -> Iterator[SparkSession]:
    """Work in the session of this process, or in a new one, which ends with the context.

    Args:
        options: Spark settings of a new session, on top of those of `local_session`.
        log: A file for what a new session's JVM prints; None lets it print.
    """
    running = _running()
    if running is not None:
        yield running
        return
    from deltaweave._session import local_session

    check_java()
    try:
        with _output_to(log) if log is not None else nullcontext():
            spark = local_session(**options)
    except Exception as error:  # a JVM may fail to start for any reason, which its output shows
        last = _last_lines(log) if log is not None else ""
        fail(f"Spark did not start ({type(error).__name__}).{last}", FAILED)
    try:
        yield spark
    finally:
        spark.stop()


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "".join(f"\n  {line}" for line in [" The end of its output:", *lines[-10:]] if lines)


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Redirect the output of this process, and for good that of the processes it starts."""
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)


def fail(problem: str, code: int) -> NoReturn:
    """End the command with one line on the standard error."""
    typer.echo(problem, err=True)
    raise typer.Exit(code)


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
