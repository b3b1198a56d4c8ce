"""What a terminal shows while a command works: a line for each step, and a bar of Spark's tasks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS_BETWEEN_LOOKS = 0.5
_SHOWN_STEPS = 6  # a merge that runs again has many


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

        Args:
            what: What is done, e.g. "Starting Spark", or the status of an engine's phase.
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
