"""Every error deltaweave raises, one tree under one base class.

```
DeltaweaveError
├── UnsupportedVersionError      Terminal   this Delta or Spark release was never tested
├── UnsupportedSessionError      Terminal   a session of Spark Connect, or without Delta
├── SessionEndedError            Terminal   the Spark session was stopped, or its JVM ended
├── TableNotFoundError           Terminal   the target (or a table the source reads) does not exist
├── NotADeltaTableError          Terminal   the target exists and is no Delta table
├── StatementError               Terminal   malformed MERGE, or a name or type that does not fit
│   └── SettingError             Terminal   a setting of the session makes no sense
├── UnsupportedFeatureError      Terminal   a table feature or setting the engine refuses
├── AmbiguousMatchError          Terminal   several source rows match one target row
├── SourceError                  Terminal   the source's data could not be read
├── SourceLostError              Transient  executors died with the materialized source
├── ConstraintViolationError     Terminal   a changed row breaks a constraint of the target
├── SchemaChangedError           Transient  the target's schema changed after resolving
├── CommitConflictError          Transient  another writer's commit won
│   └── TableReplacedError       Transient  the table was deleted, and perhaps created again
├── TableLockedError             Transient  another commit held the table's lock for too long
├── LockFileError                Terminal   the table's lock file cannot be used
├── AccessDeniedError            Terminal   the storage does not let this user write there
├── OutOfOrderError              Terminal   partitions would be merged in the wrong order
├── CommitStateUnknownError      Terminal   the commit failed, and may have landed all the same
├── LimitExceededError           Terminal   more than a limit of Spark or the machine allows
└── MergeFailedError             Terminal   anything else that stopped a merge
```

The type says whether to retry: catch `Transient` to retry, `Terminal` to give up. Every error has
its arguments as attributes. Every message says what happened, to which table, in which operation,
what state the data is in, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NOTHING_COMMITTED = "Nothing was committed: the table is as it was."
NOTHING_DONE = "Nothing was read or written."
NOTHING_READ = "Nothing was read."
NOTHING_WRITTEN = "Nothing was written."
NOTHING_REQUESTED = "Nothing was requested; the next tick looks again."
STATE_UNKNOWN = "It is not known whether anything was committed: look at the table's history."
CORRECT_STATEMENT = (
    "Correct the statement, or the argument that holds the expression, and run it again."
)

LOG_WITHOUT_VERSIONS = "DELTA_LOG_FILE_NOT_FOUND"
"""Delta's error class for a log that holds something, but no version; another writer may be about
to create the table."""


class Transient:
    """Mixin of errors that may not occur when the call is repeated."""


class Terminal:
    """Mixin of errors that occur again until something is changed."""


class DeltaweaveError(Exception):
    """Base of all errors of deltaweave.

    Attributes:
        problem: What happened, in one sentence.
        table: The table's name, or its path, which is absolute; None if there is none.
        operation: The operation, e.g. `"MERGE"`.
        version: The table version that the operation read, or None if it had read none yet.
        state: The state of the data.
        hint: What to do next, or None.
        error_class: Spark's or Delta's error class, e.g. `DELTA_MISSING_COLUMN`, or None.
        sql_state: The SQLSTATE of the class, or None.
    """

    def __init__(  # noqa: PLR0913 - what an error reports
        self,
        problem: str,
        *,
        table: str | None = None,
        operation: str = "MERGE",
        version: int | None = None,
        state: str = NOTHING_COMMITTED,
        hint: str | None = None,
        error_class: str | None = None,
        sql_state: str | None = None,
    ) -> None:
        self.problem = problem
        self.table = table
        self.operation = operation
        self.version = version
        self.state = state
        self.hint = hint
        self.error_class = error_class
        self.sql_state = sql_state
        super().__init__(self._message())

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the error as it is: its class takes other arguments than it holds."""
        return BaseException.__new__, (type(self), *self.args), vars(self)

    def restate(self, *, state: str | None = None, hint: str | None = None) -> None:
        """Replace the state of the data, or the hint, as a caller further up knows it."""
        self.state, self.hint = state or self.state, hint or self.hint
        self.args = (self._message(),)

    def _message(self) -> str:
        subject = self.operation
        if self.table is not None:
            subject += f" into {self.table}" if self.operation == "MERGE" else f" of {self.table}"
        if self.version is not None:
            subject += f" (read at version {self.version})"
        sentences = [f"{subject} failed: {self.problem.rstrip()}", self.state]
        if self.hint:
            sentences.append(self.hint)
        return "\n".join(sentences)


class UnsupportedVersionError(DeltaweaveError, Terminal):
    """deltaweave was not tested with the running Delta or Spark release."""


class UnsupportedSessionError(DeltaweaveError, Terminal):
    """The session is of Spark Connect, has no JVM that Spark runs on, or lacks Delta."""


class SessionEndedError(DeltaweaveError, Terminal):
    """The Spark session was stopped, or its JVM ended."""


class TableNotFoundError(DeltaweaveError, Terminal):
    """A table that the statement names does not exist."""


class NotADeltaTableError(DeltaweaveError, Terminal):
    """The target exists but is not a Delta table."""

    @classmethod
    def at(cls, table: str) -> NotADeltaTableError:
        """Return the error for a path or name without a Delta table."""
        return cls(
            "there is no Delta table here.",
            table=table,
            operation="opening",
            state=NOTHING_DONE,
            hint="Check the path or name, or create the table with create_if_missing().",
        )


class StatementError(DeltaweaveError, Terminal):
    """The statement is malformed, or names or types in it do not fit the tables."""


class SettingError(StatementError):
    """A setting of the session has a value that makes no sense."""


@dataclass(frozen=True)
class BuiltinDefect:
    """A way in which Delta's own MERGE may go wrong.

    Attributes:
        name: Its name.
        problem: What may happen, and what in the statement and the table brings it about.
        hint: How to write the statement, or to set the table, so that it cannot happen.
    """

    name: str
    problem: str
    hint: str


class UnsupportedFeatureError(DeltaweaveError, Terminal):
    """The target uses table features that the engine refuses.

    Attributes:
        features: Names of the refused features, as the Delta protocol spells them.
        not_in_builtin: Names of the given arguments that Delta's own MERGE cannot honour.
        builtin_defects: Names of the defects of Delta's own MERGE that the statement may meet.
    """

    def __init__(
        self,
        features: Sequence[str],
        *,
        table: str,
        version: int | None,
        not_in_builtin: Sequence[str] = (),
        builtin_defects: Sequence[BuiltinDefect] = (),
    ) -> None:
        self.features = tuple(features)
        self.not_in_builtin = tuple(not_in_builtin)
        self.builtin_defects = tuple(defect.name for defect in builtin_defects)
        unsupported = f"the table uses {', '.join(self.features)}, which deltaweave does not "
        unsupported += "support yet"
        hint = "Allow Delta's own MERGE with fallback='builtin', or drop the feature."
        if self.not_in_builtin:
            given = ", ".join(self.not_in_builtin)
            unsupported += f", and Delta's own MERGE cannot honour {given}"
            hint = f"Drop the feature, or call it with fallback='builtin' and without {given}."
        if builtin_defects:
            wrong = "; ".join(defect.problem for defect in builtin_defects)
            unsupported += f". Delta's own MERGE does not run instead: {wrong}"
            instead = " ".join(defect.hint for defect in builtin_defects)
            hint = f"Drop the feature, or do this and call it with fallback='builtin': {instead}"
        super().__init__(f"{unsupported}.", table=table, version=version, hint=hint)


class AmbiguousMatchError(DeltaweaveError, Terminal):
    """Several source rows match one target row, so the clause to apply is ambiguous.

    Attributes:
        keys: Up to 10 of the offending target rows' condition columns, each as
            `{column: value}`, with the number of source rows that match under `"matches"`; or of
            the keys that come several times in the changes of an asset, with that number under
            `"rows"`; or of the keys of a full refresh that other partitions have. None if Delta's
            own MERGE ran.
    """

    def __init__(self, problem: str, keys: Sequence[dict[str, object]] = (), **about: Any) -> None:
        self.keys = tuple(keys)
        listed = "; ".join(", ".join(f"{k}={v!r}" for k, v in key.items()) for key in self.keys)
        listed_rows = f" of these target rows: {listed}" if listed else " target row."
        hint = f"Keep one source row for each{listed_rows}"
        if about.get("hint") is not None:
            hint = f"{listed}.\n{about['hint']}"
        super().__init__(problem, **{**about, "hint": hint})


class SourceError(DeltaweaveError, Terminal):
    """The source's rows could not be read or computed."""


class SourceLostError(DeltaweaveError, Transient):
    """The executors that held the materialized source died in each of the allowed attempts."""


class ConstraintViolationError(DeltaweaveError, Terminal):
    """A changed row breaks a CHECK or NOT NULL constraint, or overflows its column."""


class SchemaChangedError(DeltaweaveError, Transient):
    """The target's schema changed between resolving the statement and running it."""


class CommitConflictError(DeltaweaveError, Transient):
    """Another writer committed a change that this merge should have seen."""


class TableReplacedError(CommitConflictError):
    """The table's directory was deleted, and perhaps created again, since it was read."""

    def __init__(self, *, table: str, operation: str, version: int) -> None:
        super().__init__(
            "the table was deleted, or deleted and created again, since it was read.",
            table=table,
            operation=operation,
            version=version,
            state="Nothing was committed: a table that was created again is as it was.",
            hint="If the table is there, run it again: it then reads the new table.",
        )


class TableLockedError(DeltaweaveError, Transient):
    """Another process or thread held the lock of a table on a disk for too long.

    Or the disk gave no locks for as long.

    Attributes:
        holder: Who holds the lock, as far as it is known.
        no_locks: What the disk said instead of giving locks, or empty.
        lock_file: The lock's file, which must stay where it is.
        waited_seconds: How long the commit waited.
    """

    def __init__(
        self,
        holder: str,
        *,
        table: str,
        operation: str,
        lock_file: str,
        waited_seconds: float,
        setting: str,
        no_locks: str = "",
    ) -> None:
        self.holder = holder
        self.no_locks = no_locks
        self.lock_file = lock_file
        self.waited_seconds = waited_seconds
        why = f"{holder} holds it"
        hint = (
            "Run it again once that commit has ended; if its process hangs, end the process, "
            f"which releases the lock. Do not delete {lock_file}."
        )
        if no_locks:
            why = f"the disk gives no locks now ({no_locks})"
            hint = "See whether the lock service of its mount runs (rpc.statd of NFS 3)."
        super().__init__(
            f"the table's lock could not be had within {waited_seconds:.1f} s: {why}.",
            table=table,
            operation=operation,
            hint=f"{hint} To wait longer, raise {setting}.",
        )


class LockFileError(DeltaweaveError, Terminal):
    """Something is in the place of a table's lock file that cannot serve as one.

    Attributes:
        lock_file: The lock's file.
    """

    def __init__(self, problem: str, *, table: str, operation: str, lock_file: str) -> None:
        self.lock_file = lock_file
        super().__init__(
            f"the table's lock cannot be taken: {problem}.",
            table=table,
            operation=operation,
            hint="All users who may write to the file's directory must be able to open it for "
            f"reading and writing. While nothing writes to the table, delete {lock_file}: the next "
            "commit creates it with the right permissions.",
        )


class AccessDeniedError(DeltaweaveError, Terminal):
    """The storage does not let the user who runs Spark write, or read, at a place."""


class OutOfOrderError(DeltaweaveError, Terminal):
    """A partition's merge would let older rows replace newer ones, now or later.

    Attributes:
        partition: The earliest partition of the merge.
        others: Newer partitions that were merged before it, or older ones that must be first.
    """

    def __init__(
        self,
        problem: str,
        *,
        partition: str,
        others: Sequence[str],
        table: str,
        version: int | None,
        hint: str,
    ) -> None:
        self.partition = partition
        self.others = tuple(others)
        super().__init__(problem, table=table, version=version, hint=hint)


class CommitStateUnknownError(DeltaweaveError, Terminal):
    """The commit failed, and neither its success nor its failure could be read from the log.

    It is terminal, because repeating a write that succeeded would apply it twice. A write with a
    transaction id can be repeated, because the table knows whether it holds the id.

    Attributes:
        transaction_id: The `commitInfo.txnId` in the log if the commit succeeded.
    """

    def __init__(
        self,
        problem: str,
        *,
        table: str | None,
        operation: str,
        version: int | None,
        transaction_id: str,
    ) -> None:
        self.transaction_id = transaction_id
        super().__init__(
            problem,
            table=table,
            operation=operation,
            version=version,
            state="It is not known whether it was committed.",
            hint=f"It was if a later version's commitInfo in _delta_log has the txnId "
            f"{transaction_id}. With `idempotency` it can simply be run again: what was applied is "
            "not applied twice.",
        )


class LimitExceededError(DeltaweaveError, Terminal):
    """A statement, its rows or a table need more than a limit of Spark or the machine allows.

    Attributes:
        settings: What sets the limit, e.g. `("spark.driver.memory",)`.
    """

    def __init__(self, problem: str, *, settings: Sequence[str] = (), **about: Any) -> None:
        self.settings = tuple(settings)
        super().__init__(problem, **about)


class MergeFailedError(DeltaweaveError, Terminal):
    """The merge failed for a reason without a class of its own; the cause is chained."""
