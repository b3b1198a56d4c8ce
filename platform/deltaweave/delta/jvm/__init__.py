"""Calls to the JVM: everything above this folder sees Python values or opaque Java objects.

- `argument_checks`: refuses arguments that are no session, no DataFrame or no name.
- `names`: packages, classes and objects by their names.
- `gateway`: converts collections, plans and expressions; checks the Spark and Delta versions.
- `arrow_rows`: collects rows as Arrow.
- `columns`: Columns and selections in few calls.
- `functions`: functions that one call applies to a whole collection.
- `class_path`: which jars hold a class.
- `errors`: translates Java exceptions into the errors of `deltaweave.errors`.
- `error_classes`: which error classes of Spark and Delta are which of them.
- `exceeded_limits`: which limit of Spark or the machine an error is about, and what to set.
- `delta_messages`: what the errors say that Delta itself would raise.
- `local_rows`: a DataFrame of a few numbers.
- `sessions`: the active session, and the one for own queries; settings that are true, and zones.
- `interrupts`: interrupts of the process that errors of Spark hide.
- `threads`: runs work for Spark in a second thread.
"""

from __future__ import annotations

from deltaweave.delta.jvm.argument_checks import (
    check_is_classic,
    check_is_data_frame,
    check_is_path_or_name,
)
from deltaweave.delta.jvm.arrow_rows import collected
from deltaweave.delta.jvm.class_path import jars_with
from deltaweave.delta.jvm.columns import (
    aliased,
    between,
    cast_strictly,
    cast_to,
    column_named,
    constant,
    grouped,
    json_text,
    selected,
    sql_expression,
    unique_number,
    where_true,
    with_column,
)
from deltaweave.delta.jvm.delta_messages import (
    SPARK_ERRORS,
    DeltaMessage,
    delta_error,
    delta_message,
    python_error,
)
from deltaweave.delta.jvm.errors import condition_and_state, letting_go, said_by, translated
from deltaweave.delta.jvm.functions import (
    class_names,
    class_of_delta,
    expressions_within,
    function,
    function_of_text,
    instances_of,
    json_of,
    made_once,
    nodes_within,
    setter,
    static_function,
)
from deltaweave.delta.jvm.gateway import (
    column_of,
    data_frame,
    data_frame_of_plan,
    delta_line,
    expression_of,
    is_a,
    iterate,
    java_list,
    java_map,
    jvm,
    map_of_pairs,
    option,
    place_of,
    plan_text,
    running_releases,
    scala_buffer,
    scala_map,
    scala_map_of,
    select_where,
    seq,
    seq_of,
    spark_line,
    text_of,
    texts,
)
from deltaweave.delta.jvm.interrupts import interrupts_shown
from deltaweave.delta.jvm.local_rows import rows_of_numbers
from deltaweave.delta.jvm.names import JavaObject, singleton
from deltaweave.delta.jvm.sessions import (
    IGNORING_FILES,
    LAST_COMMIT,
    active,
    in_session,
    is_on,
    number_setting,
    own_session,
    reads_leniently,
    refuse_lenient_reads,
    zone_rules,
)
from deltaweave.delta.jvm.threads import alongside, started

__all__ = [
    "IGNORING_FILES",
    "LAST_COMMIT",
    "SPARK_ERRORS",
    "DeltaMessage",
    "JavaObject",
    "active",
    "aliased",
    "alongside",
    "between",
    "cast_strictly",
    "cast_to",
    "check_is_classic",
    "check_is_data_frame",
    "check_is_path_or_name",
    "class_names",
    "class_of_delta",
    "collected",
    "column_named",
    "column_of",
    "condition_and_state",
    "constant",
    "data_frame",
    "data_frame_of_plan",
    "delta_error",
    "delta_line",
    "delta_message",
    "expression_of",
    "expressions_within",
    "function",
    "function_of_text",
    "grouped",
    "in_session",
    "instances_of",
    "interrupts_shown",
    "is_a",
    "is_on",
    "iterate",
    "jars_with",
    "java_list",
    "java_map",
    "json_of",
    "json_text",
    "jvm",
    "letting_go",
    "made_once",
    "map_of_pairs",
    "nodes_within",
    "number_setting",
    "option",
    "own_session",
    "place_of",
    "plan_text",
    "python_error",
    "reads_leniently",
    "refuse_lenient_reads",
    "rows_of_numbers",
    "running_releases",
    "said_by",
    "scala_buffer",
    "scala_map",
    "scala_map_of",
    "select_where",
    "selected",
    "seq",
    "seq_of",
    "setter",
    "singleton",
    "spark_line",
    "sql_expression",
    "started",
    "static_function",
    "text_of",
    "texts",
    "translated",
    "unique_number",
    "where_true",
    "with_column",
    "zone_rules",
]
