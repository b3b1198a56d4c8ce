"""deltaweave keeps Delta tables current: a MERGE engine of its own on PySpark and Delta's log.

The whole public API is here, and it is lazy: importing the package starts no JVM and imports no
pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaweave import errors
    from deltaweave.changes.apply import apply_changes
    from deltaweave.changes.debezium import FROM_DEBEZIUM, debezium_changes
    from deltaweave.changes.merge_on_read import MergeOnReadTable
    from deltaweave.delta.table_write import WriteResult
    from deltaweave.differences import ChangedRows, TouchedRows
    from deltaweave.engine import clauses
    from deltaweave.engine.explain import MergePlan
    from deltaweave.engine.outcome import MergeMetrics, MergeResult, TouchedFiles
    from deltaweave.merge_builder import MergeBuilder
    from deltaweave.session import local_session
    from deltaweave.statements import explain, merge
    from deltaweave.table import Table

__all__ = [
    "FROM_DEBEZIUM",
    "ChangedRows",
    "MergeBuilder",
    "MergeMetrics",
    "MergeOnReadTable",
    "MergePlan",
    "MergeResult",
    "Table",
    "TouchedFiles",
    "TouchedRows",
    "WriteResult",
    "apply_changes",
    "clauses",
    "debezium_changes",
    "errors",
    "explain",
    "local_session",
    "merge",
]

__version__ = "0.1.0"

_HOMES = {
    "FROM_DEBEZIUM": "deltaweave.changes.debezium",
    "ChangedRows": "deltaweave.differences",
    "MergeBuilder": "deltaweave.merge_builder",
    "MergeMetrics": "deltaweave.engine.outcome",
    "MergeOnReadTable": "deltaweave.changes.merge_on_read",
    "MergePlan": "deltaweave.engine.explain",
    "MergeResult": "deltaweave.engine.outcome",
    "Table": "deltaweave.table",
    "TouchedFiles": "deltaweave.engine.outcome",
    "TouchedRows": "deltaweave.differences",
    "WriteResult": "deltaweave.delta.table_write",
    "apply_changes": "deltaweave.changes.apply",
    "debezium_changes": "deltaweave.changes.debezium",
    "explain": "deltaweave.statements",
    "local_session": "deltaweave.session",
    "merge": "deltaweave.statements",
}
_MODULES = {"clauses": "deltaweave.engine.clauses", "errors": "deltaweave.errors"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'deltaweave' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
