"""What a merge reports: its metrics under Delta's names, and its result."""

from __future__ import annotations

from deltaweave.engine.report.metrics import merge_metrics
from deltaweave.engine.report.result import MergeMetrics, MergeResult, TouchedFiles
from deltaweave.engine.report.unaffected_rows import num_unaffected

__all__ = [
    "MergeMetrics",
    "MergeResult",
    "TouchedFiles",
    "merge_metrics",
    "num_unaffected",
]
