"""Translates JVM errors into ours, by the class, SQLSTATE and message of the Java exception.

pyspark's own translation is not used: it can fail for Delta's error classes ("Cannot find main
error class"), and it hides the chain of causes.

Errors during translation or clean-up are logged: they must not hide the one that is handled.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import (
    AnalysisException,
    ParseException,
    convert_exception,
)

from deltaweave import errors
from deltaweave.delta.jvm.gateway import JavaObject, Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOT_FOUND = {
    "TABLE_OR_VIEW_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "PATH_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
}
_NOT_DELTA = {
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",  # the path exists; a missing path is PATH_NOT_FOUND
    "DELTA_NOT_A_DELTA_TABLE",
    "DELTA_TABLE_ONLY_OPERATION",
    "DELTA_INVALID_FORMAT",
}
_SCHEMA_CHANGED = {
    "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS",
    "DELTA_SCHEMA_CHANGED",
    "DELTA_SCHEMA_CHANGED_WITH_VERSION",
    "DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS",
}
_CONSTRAINT = {
    "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    "DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
    "EXCEED_LIMIT_LENGTH",
    "NOT_NULL_ASSERT_VIOLATION",
    "CAST_OVERFLOW_IN_TABLE_INSERT",
    "DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
}
# What Spark reports of delta.`path` where Delta does not take the path, as it is relative.
_NO_DIRECT_QUERY = "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"
_OF_DELTA = re.compile(r"on files: delta\b")
_AMBIGUOUS = {"DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE"}
CATALOG_NOT_LOADED = {f"_LEGACY_ERROR_TEMP_{number}" for number in range(2214, 2219)}
"""Spark cannot load the class that spark.sql.catalog.<name> names."""

ERROR_CLASSES: tuple[tuple[type[errors.DeltaweaveError], Set[str]], ...] = (
    (errors.TableNotFoundError, _NOT_FOUND),
    (errors.NotADeltaTableError, _NOT_DELTA),
    (errors.AmbiguousMatchError, _AMBIGUOUS),
    (errors.SchemaChangedError, _SCHEMA_CHANGED),
    (errors.ConstraintViolationError, _CONSTRAINT),
    (errors.StatementError, CATALOG_NOT_LOADED),
    (errors.SourceLostError, {"CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"}),
)
"""Our errors, and the error classes that are each of them, without what follows a dot."""


_HEAP = ("spark.driver.memory", "spark.executor.memory")


@dataclass(frozen=True)
class ExceededLimit:
    """A limit that was exceeded.

    Attributes:
        pattern: A pattern of the errors' messages.
        limit: What was not enough, or too much.
        settings: What sets it.
        hint: What to do.
    """

    pattern: str
    limit: str
    settings: tuple[str, ...]
    hint: str

    def about(self, message: str) -> dict[str, Any]:
        """Return the arguments of a LimitExceededError for an error's message."""
        problem = f"{self.limit}: {message}"
        return {"problem": problem, "hint": self.hint, "settings": self.settings}


_MEMORY = ExceededLimit(
    r"java\.lang\.OutOfMemoryError|SparkOutOfMemoryError"
    r"|UNABLE_TO_ACQUIRE_MEMORY|(AGGREGATE|POINTER_ARRAY)_OUT_OF_MEMORY"
    # Could not allocate for a map, a hash relation, a hash map.
    r"|_LEGACY_ERROR_TEMP_(2105|2106|2107)"
    r"|[Cc]ommand exited with code 52|exceeding (physical|virtual)? ?memory limits",
    "a JVM has too little memory",
    _HEAP,
    "Raise spark.driver.memory before Spark starts (with a local master, it is the executors', "
    "too), on a cluster also spark.executor.memory; or merge fewer rows or files at once.",
)
_LIMITS = (
    _MEMORY,
    ExceededLimit(
        r"java\.lang\.StackOverflowError|FAILED_TO_PARSE_TOO_COMPLEX",
        "the statement is nested too deeply for the stack of a thread",
        ("spark.driver.extraJavaOptions",),
        "Set spark.driver.extraJavaOptions=-Xss64m before Spark starts, or split the statement's "
        "conditions and expressions.",
    ),
    ExceededLimit(
        r"spark\.driver\.maxResultSize",
        "more comes to the driver than it takes",
        ("spark.driver.maxResultSize",),
        "Raise spark.driver.maxResultSize (and spark.driver.memory) before Spark starts.",
    ),
    ExceededLimit(
        r"Could not execute broadcast in|_LEGACY_ERROR_TEMP_2097",
        "a broadcast took too long",
        ("spark.sql.broadcastTimeout",),
        "Raise spark.sql.broadcastTimeout, or set spark.sql.autoBroadcastJoinThreshold to -1.",
    ),
    ExceededLimit(
        r"Not enough memory to build and broadcast|_LEGACY_ERROR_TEMP_2250",
        "the driver has too little memory for a broadcast",
        ("spark.driver.memory", "spark.sql.autoBroadcastJoinThreshold"),
        "Raise spark.driver.memory before Spark starts, or set "
        "spark.sql.autoBroadcastJoinThreshold to -1.",
    ),
    ExceededLimit(
        r"Cannot broadcast the table|_LEGACY_ERROR_TEMP_(2248|2249)",
        "a side of a join is too large for a broadcast",
        ("spark.sql.autoBroadcastJoinThreshold",),
        "Set spark.sql.autoBroadcastJoinThreshold to -1, and drop hints to broadcast.",
    ),
    ExceededLimit(
        r"Kryo serialization failed: Buffer overflow|KRYO_BUFFER_OVERFLOW",
        "a row or a task is too large for the serializer",
        ("spark.kryoserializer.buffer.max",),
        "Raise spark.kryoserializer.buffer.max before Spark starts.",
    ),
    ExceededLimit(
        r"No space left on device",
        "a disk is full",
        ("spark.local.dir",),
        "Free space where the table is, or set spark.local.dir, where Spark keeps materialized "
        "sources and shuffled rows, to a larger disk.",
    ),
)

_OUT_OF_MEMORY = 52  # Spark's exit code for a JVM without memory (SparkExitCode.OOM)
_KILLED = -9  # as the machine does with the largest process if its memory runs out
_DYING_SECONDS = 5


def exceeded_limit(message: str) -> ExceededLimit | None:
    """Return the limit that a Java exception's class and message are about, or None."""
    return next((limit for limit in _LIMITS if re.search(limit.pattern, message)), None)


def limit_that_ended_the_jvm() -> ExceededLimit | None:
    """Return the limit for which the JVM that this process started ended; None if none did.

    Call it if the JVM cannot be reached: it may be about to end.
    """
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        code = process.wait(timeout=_DYING_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return _MEMORY if code in (_OUT_OF_MEMORY, _KILLED) else None


logger = logging.getLogger(__name__)

# Messages of these quote values, which may hold any words; so do those of the aborted job.
_QUOTING = ("CAST_", "DELTA_", "USER_RAISED_EXCEPTION")
_HINTS: dict[type[errors.DeltaweaveError], str] = {
    errors.TableNotFoundError: "Check the name or path, or create the table first. A path has a "
    "slash: ./orders.",
    errors.NotADeltaTableError: "Convert the table with CONVERT TO DELTA, or name a Delta table.",
    errors.StatementError: errors.CORRECT_STATEMENT,
    errors.SchemaChangedError: "Run the statement again: it is resolved against the new schema.",
    errors.CommitConflictError: "Run the merge again: it will read the winning commit.",
    errors.ConstraintViolationError: "Correct the source rows, or the constraint.",
    errors.SourceLostError: "Run the merge again once the cluster keeps its executors.",
    errors.SourceError: "Check that the source's files are readable and its query runs by itself.",
    errors.SessionEndedError: "Start a new session, and run it again there.",
    errors.AccessDeniedError: "Give the user who runs Spark the right to write there, or name "
    "another place; of an object store, look at the policy of its keys.",
}
# What Java and Hadoop raise where the storage refuses: by the exception's class, or by its words.
_DENIES = re.compile(
    r"java\.nio\.file\.AccessDeniedException|org\.apache\.hadoop\.security\.AccessControlException"
    r"|java\.io\.\w+: .*(\(Permission denied\)|Read-only file system|Mkdirs failed to create)"
)
# Messages about a missing table are for any statement, also for DROP; the hint has what to do.
_ADVICE_ON_NAMES = re.compile(
    r"(?<!\s)\s*To tolerate the error on drop,? use [^.]*\."
    r"|(?<!\s)\s*Verify the spelling and correctness of the schema.*?(?=\sSQLSTATE:|\Z)",
    re.DOTALL,
)
# A line of a plan: an operator's name, perhaps of one that Spark compiles; or a part's heading.
_OPERATOR = re.compile(r"['!]?[A-Z]\w*[a-z]|\*\(\d+\) |== ")
_BRANCH = re.compile(r"[ :+|-]*")
_READING_FILE = re.compile(r"reading file (\S+?)\.?(?=\s|$)")
_TRACEBACK = "Traceback (most recent call last):"
_SESSION_ENDED = re.compile(r"SparkContext (was|has been) shut ?down|stopped SparkContext")
# Delta raises these before it writes a version.
_BEFORE_ANY_COMMIT = (
    errors.TableNotFoundError,
    errors.NotADeltaTableError,
    errors.StatementError,
    errors.AmbiguousMatchError,
    errors.SchemaChangedError,
    errors.ConstraintViolationError,
    errors.CommitConflictError,
)


@contextmanager
def translated(
    table: str | None,
    *,
    operation: str = "MERGE",
    version: int | None = None,
    otherwise: type[errors.DeltaweaveError] = errors.MergeFailedError,
    commits: bool = False,
) -> Iterator[None]:
    """Raise errors of the block as ours; the original error is the cause.

    Args:
        otherwise: The class for errors that match no other class.
        commits: Whether the block commits, so that an error may come after the commit. Otherwise
            every error says that nothing was committed.
    """
    try:
        yield
    except (Py4JError, PySparkException, AttributeError, OSError) as error:
        is_ours = isinstance(error, (Py4JJavaError, PySparkException))
        # pyspark raises many kinds of errors for a session that has ended.
        if not is_ours and not _session_has_ended():
            raise
        about = {"table": table, "operation": operation, "version": version}
        raise _translation(error, otherwise, commits, about) from error


@contextmanager
def suppress_cleanup_errors(of_what: str) -> Iterator[None]:
    """Run a block that releases something: log its errors instead of raising them."""
    try:
        yield
    except Exception as error:
        logger.warning("could not release %s: %s", of_what, reported_by(error))


def reported_by(error: BaseException) -> str:
    """Return the first line of an error's message, from the JVM if that still runs."""
    try:
        java_error = _java_exception(error)
        message = str(error) if java_error is None else java_error.getMessage()
    except Exception:
        message = None
    return (str(message or "").strip() or type(error).__name__).splitlines()[0]


def _translation(
    error: BaseException,
    otherwise: type[errors.DeltaweaveError],
    commits: bool,
    about: dict[str, Any],
) -> errors.DeltaweaveError:
    try:
        java_error = _java_exception(error)
        kind, arguments = (
            _TranslatedError(otherwise, {"problem": str(error)})
            if java_error is None
            else _kind_and_arguments(java_error, otherwise)
        )
    except Exception:  # the JVM has ended, or cannot describe its error
        kind, arguments = _TranslatedError(otherwise, {"problem": reported_by(error)})
    if kind is otherwise and _session_has_ended(arguments["problem"]):
        kind = errors.SessionEndedError
        arguments["problem"] = f"the Spark session has ended ({_first_line(arguments)})."
        # A Java error that is known has come from a JVM that could still answer.
        limit = None if "error_class" in arguments else limit_that_ended_the_jvm()
        if limit is not None:
            kind = errors.LimitExceededError
            arguments |= limit.about("the driver's JVM has ended.")
    is_opening = about["operation"] == "opening"
    state = errors.NOTHING_DONE if is_opening else errors.NOTHING_COMMITTED
    if commits and kind not in _BEFORE_ANY_COMMIT:
        state = errors.STATE_UNKNOWN
    return kind(**{"hint": _HINTS.get(kind), "state": state, **arguments, **about})


def _first_line(arguments: dict[str, Any]) -> str:
    return (str(arguments["problem"]).strip().splitlines() or ["it cannot be reached"])[0]


def _session_has_ended(message: str = "") -> bool:
    """Return whether this process's Spark has been stopped, or its JVM cannot be reached."""
    if _SESSION_ENDED.search(message):
        return True
    context: Any = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return True
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # py4j cannot reach the JVM, in one of several ways
        return True


def _java_exception(error: BaseException | None) -> JavaObject | None:
    """Return the first Java exception behind an error of py4j or pyspark."""
    while error is not None:
        origin = getattr(error, "_origin", None)
        if origin is not None:
            return origin
        if isinstance(error, Py4JJavaError) and not isinstance(error.__context__, Py4JJavaError):
            return error.java_exception
        error = error.__context__
    return None


class _TranslatedError(NamedTuple):
    """The class of an error, and what it is raised with."""

    kind: type[errors.DeltaweaveError]
    arguments: dict[str, Any]


def _kind_and_arguments(
    java_error: JavaObject, otherwise: type[errors.DeltaweaveError]
) -> _TranslatedError:
    chain = list(_causes(java_error))
    for cause in chain if not any(_quotes(cause) for cause in chain) else ():
        error_class = _error_class(cause)
        limit = exceeded_limit(error_class or str(cause.toString()))
        if limit is not None:
            arguments = _arguments(cause)
            arguments |= limit.about(_first_line(arguments))
            return _TranslatedError(errors.LimitExceededError, arguments)
    for cause in chain:
        kind = _error_type(cause)
        if kind is not None:
            return _TranslatedError(kind, _arguments(cause))
    denied = next((cause for cause in chain if _DENIES.match(str(cause.toString()))), None)
    if denied is not None and otherwise is errors.MergeFailedError:
        refused = f"the storage refuses access ({_first_line({'problem': denied.toString()})})."
        return _TranslatedError(errors.AccessDeniedError, {"problem": refused})
    # The outermost exceptions only report an aborted job. An exception without an error class may
    # not name the file or value.
    classified = next((cause for cause in reversed(chain) if _error_class(cause)), chain[-1])
    return _TranslatedError(otherwise, _with_file(_arguments(classified), chain))


def _with_file(arguments: dict[str, Any], chain: list[JavaObject]) -> dict[str, Any]:
    """Name the file that could not be read, which only an outer exception knows."""
    for cause in chain:
        file = _READING_FILE.search(cause.getMessage() or "")
        if file is not None and file[1] not in arguments["problem"]:
            problem = f"{arguments['problem'].rstrip()}\nThe file is {file[1]}."
            return {**arguments, "problem": problem}
    return arguments


def _quotes(java_error: JavaObject) -> bool:
    """Return whether a message quotes a user's text, so that its words do not show a limit."""
    return (_error_class(java_error) or "").startswith(_QUOTING)


def _arguments(java_error: JavaObject) -> dict[str, Any]:
    message = _without_plan(java_error.getMessage() or java_error.toString())
    arguments = {
        "problem": _without_traceback(_ADVICE_ON_NAMES.sub("", message)),
        "error_class": _error_class(java_error),
        "sql_state": _call(java_error, "getSqlState"),
    }
    if arguments["error_class"] in CATALOG_NOT_LOADED:
        arguments["hint"] = (
            "Correct spark.sql.catalog.<name> of the catalog's name, or add the jars of its "
            "connector (spark.jars.packages), of a release for this Spark."
        )
    elif (arguments["error_class"] or "").startswith("CAST_"):
        arguments["hint"] = (
            "Correct the value in the source, or cast it in the source's query: try_cast returns "
            "NULL where a value cannot be cast. Merges cast the source's values to the types of "
            "the target's columns."
        )
    elif arguments["error_class"] == _NO_DIRECT_QUERY and _OF_DELTA.search(
        str(arguments["problem"])
    ):
        arguments["hint"] = (
            "Give the whole path, as delta.`/lake/orders`: Delta takes no relative one."
        )
    elif arguments["error_class"] == "SCHEMA_NOT_FOUND":
        arguments["hint"] = "Create the schema first (CREATE SCHEMA …), or name another one."
    return arguments


def _without_plan(message: str) -> str:
    """Cut the plan that Spark appends to a message about names: `;`, then a tree of relations.

    Plans may have thousands of names, so each line is looked at once.
    """
    lines = message.rstrip().split("\n")
    begin = len(lines)
    while begin > 1 and _is_of_plan(lines[begin - 1]):
        begin -= 1
    for i in range(begin, len(lines)):
        if lines[i - 1].endswith(";") and _OPERATOR.match(lines[i]):
            return "\n".join(lines[:i])[:-1]
    return message


def _is_of_plan(line: str) -> bool:
    branch = _BRANCH.match(line)
    return branch is not None and _OPERATOR.match(line, branch.end()) is not None


def _without_traceback(message: str) -> str:
    """Shorten a Python worker's error to its message; the cause has the traceback."""
    _, is_traceback, last = message.rpartition(_TRACEBACK)
    if not is_traceback:
        return message
    lines = last.strip("\n").split("\n")
    raised = list(dropwhile(lambda line: line.startswith(" ") or not line, lines))
    # The first line begins with the class and its module.
    return re.sub(r"^[\w.]+: ", "", "\n".join(raised)).strip() or message


def _causes(java_error: JavaObject) -> Iterator[JavaObject]:
    """Yield the exception and its causes, outermost first; at most ten of them."""
    for _ in range(10):
        if java_error is None:
            return
        yield java_error
        java_error = java_error.getCause()


def _error_type(java_error: JavaObject) -> type[errors.DeltaweaveError] | None:
    name = java_error.getClass().getName()
    error_class = (_error_class(java_error) or "").split(".")[0]
    for known, classes in ERROR_CLASSES:
        if error_class in classes:
            return known
    if "InvariantViolation" in name:
        return errors.ConstraintViolationError
    if ("Concurrent" in name or "MetadataChanged" in name or "ProtocolChanged" in name) and (
        "delta" in name
    ):
        return errors.CommitConflictError
    if name.endswith(("AnalysisException", ".parser.ParseException")):
        return errors.StatementError
    return _transient_in_a_batch(java_error)


def _transient_in_a_batch(java_error: JavaObject) -> type[errors.DeltaweaveError] | None:
    """Return the class of our transient error that a stream's batch raised, by its traceback."""
    if not java_error.getClass().getName().endswith("StreamingQueryException"):
        return None
    raised = re.search(r"^deltaweave\.errors\.(\w+): ", java_error.getMessage() or "", re.M)
    kind = getattr(errors, raised.group(1), None) if raised else None
    return kind if kind is not None and issubclass(kind, errors.Transient) else None


def _error_class(java_error: JavaObject) -> str | None:
    return _call(java_error, "getCondition") or _call(java_error, "getErrorClass")


def _call(java_error: JavaObject, method: str) -> str | None:
    """Call a method of the exception; None where its class lacks the method."""
    try:
        answer = getattr(java_error, method)()
    except Exception:  # py4j raises different types for a missing method and a failing one
        return None
    return answer if isinstance(answer, str) else None


SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What PySpark raises for an exception of the JVM: translated by its class, or as it is."""


def untranslated(error: Exception) -> Exception:
    """Return what PySpark would raise for an exception of the JVM, had its translation not failed.

    PySpark 4.2 asks Spark for the message of an error that names a place in a SQL text. Spark does
    not know Delta's error classes, so PySpark raises a Java error about that instead.
    """
    meant = _java_exception(error)
    if meant is None or meant is getattr(error, "java_exception", meant):
        return error
    name = meant.getClass().getName()
    if not name.endswith(("AnalysisException", ".ParseException")):
        return error
    kind = ParseException if name.endswith(".ParseException") else AnalysisException
    shown: Exception = kind(desc=str(meant.getMessage()), stackTrace=str(meant.toString()))
    shown._origin = meant  # type: ignore[attr-defined]  # for getCondition and getSqlState
    return shown


@dataclass(frozen=True)
class DeltaMessage:
    """The message of one of Delta's errors.

    Attributes:
        text: Its message.
        error_class: Its error class.
        sql_state: Its SQLSTATE, if it has one.
    """

    text: str
    error_class: str
    sql_state: str | None

    @staticmethod
    def of(java_error: JavaObject) -> DeltaMessage:
        """Read the message of an exception of Spark or Delta."""
        error_class, sql_state = _error_class(java_error) or "", _call(java_error, "getSqlState")
        return DeltaMessage(str(java_error.getMessage()), error_class, sql_state)


def delta_message(spark: SparkSession, name: str, *, with_session: bool = False) -> DeltaMessage:
    """Read the message of the error that Delta's `DeltaErrors.name()` builds."""
    return DeltaMessage.of(_built(spark, name, with_session))


def python_error(spark: SparkSession, name: str, *, with_session: bool = False) -> Exception:
    """Build the exception that PySpark makes of the error of Delta's `DeltaErrors.name()`."""
    error: Exception = convert_exception(_built(spark, name, with_session))
    return error


def _built(spark: SparkSession, name: str, with_session: bool) -> JavaObject:
    return Jvm.of(spark).delta_error(name, *((spark._jsparkSession,) if with_session else ()))
