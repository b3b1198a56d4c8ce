"""How commands run cases: under a progress bar, and report failures in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deltaweave.errors import DeltaweaveError
from deltaweave.terminal import FAILED, fail

if TYPE_CHECKING:
    from benchmarks.merge import Case

T = TypeVar("T")


def with_progress(console: Console, todo: Sequence[tuple[Case, T]]) -> Iterator[tuple[Case, T]]:
    """Yield each item under a progress bar that names its case."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=len(todo))
        for case, beside in todo:
            bar.update(task, description=case.label)
            yield case, beside
            bar.advance(task)


@contextmanager
def failing_in_one_line(case: Case | None = None) -> Iterator[None]:
    """End the command with one line, which names the case, where the block fails."""
    from assets.tpcds import GeneratorError
    from benchmarks.peers import PeerError

    where = "" if case is None else f"{case.name}: "
    try:
        yield
    except GeneratorError as error:
        lines = str(error).splitlines()  # the last ones of the generator's output
        fail(" ".join(dict.fromkeys((lines[0], lines[-1]))), FAILED)
    except (DeltaweaveError, PeerError) as error:
        fail(f"{where}{error}", FAILED)
    except OSError as error:
        fail(f"{where}{error.strerror or error}", FAILED)


def fail_where_rows_differ(whose: str, differing: Sequence[str]) -> None:
    """End the command if the rows of any case differ.

    Args:
        whose: Whose rows they differ from, e.g. `Iceberg's`.
        differing: The names of the cases.
    """
    if differing:
        fail(f"Rows differ from {whose}: {', '.join(differing)}.", FAILED)
