"""Records a merge in Dagster's event log: an observation for each phase that ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import AssetKey, AssetObservation, MetadataValue

from dagster_deltaweave.metadata.metadata_entries import merge_metadata

if TYPE_CHECKING:
    from deltaweave import MergeResult


@dataclass(frozen=True)
class Phase:
    """How the observation of a phase describes it.

    Attributes:
        name: The beginning of the description.
        seconds: Metadata key of its time, which is missing if the phase did not run.
        keys: Metadata keys of its results; no key is in two phases.
        summary: A line on what it did.
    """

    name: str
    seconds: str
    keys: tuple[str, ...]
    summary: Callable[[MergeResult], str]


def _source(result: MergeResult) -> str:
    return f"{result.metrics.num_source_rows:,} rows"


def _files(result: MergeResult) -> str:
    metrics = result.metrics
    before, after = (
        metrics.num_target_files_before_skipping,
        metrics.num_target_files_after_skipping,
    )
    scanned = f"{after:,} of {before:,} files scanned"
    if result.strategy == "builtin":  # built-in MERGE does not say which files it touched
        return scanned
    return f"{scanned}, {len(result.touched_files.removed):,} touched"


def _rows(result: MergeResult) -> str:
    metrics = result.metrics
    return (
        f"{result.strategy}, {metrics.num_target_rows_inserted:,} rows inserted, "
        f"{metrics.num_target_rows_updated:,} updated, {metrics.num_target_rows_deleted:,} "
        f"deleted, {metrics.num_target_rows_copied:,} copied"
    )


def _version(result: MergeResult) -> str:
    if result.version is not None:
        return f"version {result.version}"
    if result.strategy == "already-applied":
        return "nothing, since these changes were applied before"
    return "nothing, since no row changed"


PHASES = (
    Phase(
        "Materialize source",
        "merge/materialize_source_seconds",
        ("merge/source_rows", "merge/source_materialization"),
        _source,
    ),
    Phase(
        "Find touched files",
        "merge/scan_seconds",
        (
            "merge/files_before_skipping",
            "merge/files_after_skipping",
            "merge/files_touched",
            "merge/bytes_before_skipping",
            "merge/bytes_after_skipping",
            "merge/bytes_touched",
        ),
        _files,
    ),
    Phase(
        "Write changes",
        "merge/rewrite_seconds",
        (
            "merge/source_rows_unaffected",
            "merge/rows_inserted",
            "merge/rows_updated",
            "merge/rows_deleted",
            "merge/by_source_rows_updated",
            "merge/by_source_rows_deleted",
            "merge/rows_copied",
            "merge/files_removed",
            "merge/files_added",
            "merge/bytes_removed",
            "merge/bytes_added",
            "merge/change_files_added",
            "merge/change_bytes_added",
            "merge/deletion_vectors_added",
            "merge/deletion_vectors_updated",
            "merge/deletion_vectors_removed",
            "merge/write_amplification",
        ),
        _rows,
    ),
    Phase(
        "Commit",
        "merge/commit_seconds",
        (
            "merge/version",
            "merge/strategy",
            "merge/seconds",
            "merge/attempts",
            "merge/commit_attempts",
            "merge/files_redone",
        ),
        _version,
    ),
)


def phase_observations(
    asset_key: AssetKey,
    partition: str | None,
    result: MergeResult,
    about_commit: Mapping[str, MetadataValue],
) -> Iterator[AssetObservation]:
    """Observations of a merge's phases, in order; the commit has one even if nothing was committed.

    Args:
        asset_key: The asset of the merge's target.
        partition: The partition that was merged, or None if it was none or several.
        result: What the merge reports.
        about_commit: Further metadata for the commit's observation.
    """
    metadata = merge_metadata(result)
    for phase in PHASES:
        is_commit = phase.name == "Commit"
        seconds = metadata[phase.seconds].value
        if not seconds and not is_commit:
            continue
        keys = (*phase.keys, phase.seconds)
        of_phase = {key: metadata[key] for key in keys if key in metadata}
        yield AssetObservation(
            asset_key=asset_key,
            partition=partition,
            description=f"{phase.name}: {phase.summary(result)}, {seconds:.1f} s",
            metadata={**of_phase, **(about_commit if is_commit else {})},
        )
