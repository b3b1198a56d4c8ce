"""Calls to the JVM: everything above this folder sees Python values or opaque Java objects.

- `gateway`: the JVM of a session: names, collections, plans, expressions, functions of the JVM.
- `data_frames`: DataFrames and Columns in few calls; rows collected as Arrow.
- `sessions`: the active session, and the one for own queries; settings that are true, and zones.
- `threads`: runs work for Spark in a second thread; interrupts that errors of Spark hide.
- `arguments`: refuses arguments that are no session, no DataFrame or no name.
- `errors`: translates Java exceptions into the errors of `deltaweave.errors`.
"""

from __future__ import annotations

from deltaweave.delta.jvm.arguments import (
    check_is_classic,
    check_is_data_frame,
    check_is_path_or_name,
)
from deltaweave.delta.jvm.data_frames import (
    aliased,
    between,
    cast_strictly,
    cast_to,
    collected,
    column_named,
    constant,
    grouped,
    json_text,
    plan_text,
    rows_of_numbers,
    selected,
    sql_expression,
    unique_number,
    value_where,
    with_column,
)
from deltaweave.delta.jvm.errors import (
    SPARK_ERRORS,
    DeltaMessage,
    delta_message,
    python_error,
    reported_by,
    suppress_cleanup_errors,
    translated,
)
from deltaweave.delta.jvm.gateway import (
    DeltaLog,
    DeltaMetadata,
    DeltaSnapshot,
    DeltaTransaction,
    Expression,
    JavaObject,
    Jvm,
    Plan,
    jars_with,
    running_releases,
)
from deltaweave.delta.jvm.sessions import (
    IGNORING_FILES,
    LAST_COMMIT,
    PAIR_VERSION,
    active,
    in_session,
    is_on,
    number_setting,
    own_session,
    reads_leniently,
    refuse_lenient_reads,
)
from deltaweave.delta.jvm.threads import (
    alongside,
    raise_hidden_interrupts,
    started,
)

__all__ = [
    "IGNORING_FILES",
    "LAST_COMMIT",
    "PAIR_VERSION",
    "SPARK_ERRORS",
    "DeltaLog",
    "DeltaMessage",
    "DeltaMetadata",
    "DeltaSnapshot",
    "DeltaTransaction",
    "Expression",
    "JavaObject",
    "Jvm",
    "Plan",
    "active",
    "aliased",
    "alongside",
    "between",
    "cast_strictly",
    "cast_to",
    "check_is_classic",
    "check_is_data_frame",
    "check_is_path_or_name",
    "collected",
    "column_named",
    "constant",
    "delta_message",
    "grouped",
    "in_session",
    "is_on",
    "jars_with",
    "json_text",
    "number_setting",
    "own_session",
    "plan_text",
    "python_error",
    "raise_hidden_interrupts",
    "reads_leniently",
    "refuse_lenient_reads",
    "reported_by",
    "rows_of_numbers",
    "running_releases",
    "selected",
    "sql_expression",
    "started",
    "suppress_cleanup_errors",
    "translated",
    "unique_number",
    "value_where",
    "with_column",
]
