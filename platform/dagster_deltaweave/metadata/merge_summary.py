"""Says in sentences what a merge did: a summary, and a line for each of its phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from deltaweave.counts import counted

if TYPE_CHECKING:
    from deltaweave import MergeResult

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "insert-only": "new rows were added in new files",
        "copy-on-write": "the touched files were rewritten",
        "copy-in-place": "touched files were copied with their changed rows replaced",
        "deletion-vectors": "changed rows were marked in their files and written to new files",
        "none": "no row changed",
        "already-applied": "nothing: these changes were applied before",
        "builtin": "Delta's own MERGE ran",
    }
)
"""Strategy to what it did."""

_MATERIALIZATION: Mapping[str, str] = MappingProxyType(
    {
        "NOT_MATERIALIZED_AUTO": "read again in each phase, since Delta tables alone are read",
        "NOT_MATERIALIZED_NONE": "read again in each phase, as the session's setting says",
        "MATERIALIZE_ALL": "computed once, as the session's setting says",
        "NON_DETERMINISTIC_SOURCE_NON_DELTA": "computed once, since more than Delta tables is read",
        "NON_DETERMINISTIC_SOURCE_OPERATORS": "computed once, since the query may give other rows",
        "NON_DETERMINISTIC_SOURCE_WITH_DETERMINISTIC_UDF": "computed once, since it calls a UDF",
        "IGNORE_UNREADABLE_FILES_CONFIGS_ARE_SET": (
            "computed once, since Spark may skip files that it cannot read"
        ),
        "FILTERED_BY_DAYS_THAT_PARQUET_LACKS": (
            "computed once, since filters on files lack days of October 1582"
        ),
        "SOURCE_CACHED": "computed once, since Spark may drop what it has cached",
    }
)
"""Delta's reason to materialize the source or not, to what was done and why."""


@dataclass(frozen=True)
class PhaseLine:
    """What a phase did.

    Attributes:
        phase: Its name.
        did: What it did, for people.
        seconds: How long it took.
    """

    phase: str
    did: str
    seconds: float


def summary(result: MergeResult) -> str:
    """Return one line on what a merge did, with what matters most first."""
    metrics = result.metrics
    if result.was_applied_before:
        return "Nothing was merged, since these changes were applied before."
    seconds = (metrics["executionTimeMs"] + result.commit_time_ms) / 1000
    parts = [
        f"{_changed_rows(result)}.",
        f"{_skipped_files(result)}{_touched_files(result)}.",
        *_repeated(result),
        f"{seconds:.1f} s.",
    ]
    return " ".join(parts)


def phase_lines(result: MergeResult) -> Iterator[PhaseLine]:
    """Yield a line for each phase that ran, and for the commit even if nothing was committed."""
    metrics = result.metrics
    why = _MATERIALIZATION.get(result.source_materialization, result.source_materialization)
    source = counted(metrics.num_source_rows, "row") + (f", {why}" if why else "")
    scanned = f"{_skipped_files(result)}{_touched_files(result)}"
    added = readable(metrics.num_target_bytes_added)
    written = (
        f"{STRATEGIES.get(result.strategy, result.strategy)}: {_changed_rows(result)}, "
        f"{metrics.num_target_rows_copied:,} copied; "
        f"{counted(metrics.num_target_files_added, 'file')} added ({added})"
    )
    phases = (
        ("Materialize source", source, metrics["materializeSourceTimeMs"]),
        ("Find touched files", scanned, metrics["scanTimeMs"]),
        ("Write changes", written, metrics["rewriteTimeMs"]),
    )
    for phase, did, ms in phases:
        if ms:
            yield PhaseLine(phase, did, ms / 1000)
    yield PhaseLine("Commit", _committed(result), result.commit_time_ms / 1000)


def readable(size_in_bytes: int) -> str:
    """Return a size in bytes in the unit that people read it in, e.g. `1.2 MB`."""
    size, unit = float(size_in_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def _changed_rows(result: MergeResult) -> str:
    metrics = result.metrics
    return (
        f"{counted(metrics.num_target_rows_updated, 'row')} updated, "
        f"{metrics.num_target_rows_inserted:,} inserted, "
        f"{metrics.num_target_rows_deleted:,} deleted"
    )


def _skipped_files(result: MergeResult) -> str:
    metrics = result.metrics
    before = metrics.num_target_files_before_skipping
    skipped = before - metrics.num_target_files_after_skipping
    bytes_before = metrics.num_target_bytes_before_skipping
    bytes_skipped = bytes_before - metrics.num_target_bytes_after_skipping
    return (
        f"{skipped:,} of {counted(before, 'file')} skipped "
        f"({readable(bytes_skipped)} of {readable(bytes_before)})"
    )


def _touched_files(result: MergeResult) -> str:
    """Return what became of touched files; empty for Delta's own MERGE, which reports nothing."""
    if result.strategy == "builtin":
        return ""
    metrics = result.metrics
    marked = metrics.num_target_deletion_vectors_added + metrics.num_target_deletion_vectors_updated
    return f", {marked:,} marked, {metrics.num_target_files_removed:,} rewritten"


def _repeated(result: MergeResult) -> Iterator[str]:
    """Yield a sentence for each retry of the merge or its commit."""
    if result.attempts > 1:
        yield f"Ran {result.attempts} times, since executors died."
    if result.commit_attempts > 1:
        yield (
            f"Committed at attempt {result.commit_attempts}, since other commits won; "
            f"{counted(result.files_redone, 'file')} had to be written again."
        )


def _committed(result: MergeResult) -> str:
    if result.version is not None:
        return f"version {result.version}"
    if result.was_applied_before:
        return STRATEGIES["already-applied"]
    return "nothing, since no row changed"
