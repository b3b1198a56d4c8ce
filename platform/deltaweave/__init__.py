"""deltaweave keeps Delta tables current: a MERGE engine of its own on PySpark and Delta's log.

Merge, and read:

    merge               run a MERGE statement
    explain             what a MERGE statement would do
    Table               a Delta table by path or name: read, write, merge, upkeep
    MergeBuilder        a merge built clause by clause; `Table.merge` makes it
    clauses             the clauses of a merge as values
    MergeResult         what a merge committed, with MergeMetrics and TouchedFiles
    MergePlan           what `explain` returns
    WriteResult         what `Table.write` committed
    Lease               what a table must still hold when a merge commits
    TouchedRows         the rows of the files by which two versions differ
    ChangedRows         the rows by which two versions differ
    errors              each error, with what to do about it

Change data capture:

    apply_changes       apply change events to a table, in whatever order they arrive
    MergeOnReadTable    a base table and the changes to it, read as one table
    debezium_changes    Debezium's envelopes as rows for `apply_changes`
    FROM_DEBEZIUM       the arguments of `apply_changes` for these rows

Sessions:

    local_session       a Spark session on this machine, with Delta
    enable, disable     run the MERGE statements of a session on deltaweave, or no longer

`help(deltaweave.merge)` shows a name's own page. The package is lazy: importing it starts no JVM
and imports no pyspark. Modules that begin with an underscore are not for others.
"""

import sys
from importlib.resources import as_file, files
from types import FrameType

import lazy_loader

# The names and their homes are in the stub beside this file, once for readers and type checkers.
# A file of its own for as long as it is read: the package may lie in a zip (`--py-files`).
with as_file(files(__name__) / "__init__.pyi") as _stub:
    __getattr__, _, __all__ = lazy_loader.attach_stub(__name__, str(_stub))

__version__ = "0.1.0"


def __dir__() -> list[str]:
    """Return the public names; none to `help`, which would print the 1,300 lines of their pages."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller.f_globals["__name__"] == "inspect":
        caller = caller.f_back
    return [] if caller is not None and caller.f_globals["__name__"] == "pydoc" else list(__all__)
