"""Statements that analysis refuses: what a condition may hold, and what a clause may name."""

from __future__ import annotations

from typing import Any

from tests.merge_cases.case import (
    MergeCase,
    by_source_delete,
    by_source_update,
    delete,
    insert,
    insert_all,
    update,
    update_all,
)

STRUCT = "k INT, a STRUCT<b: INT, c: INT>"


def refused(name: str, error: str, *clauses: Any, **fields: Any) -> MergeCase:
    """(1, 10) and (2, 20), and a source of (1, 100), with clauses that analysis refuses."""
    rows: dict[str, Any] = {"target": [(1, 10), (2, 20)], "source": [(1, 100)]}
    return MergeCase(name=name, error=error, clauses=clauses, **{**rows, **fields})


CASES = (
    refused(
        "subquery_in_the_match_condition",
        "DELTA_UNSUPPORTED_SUBQUERY",
        update_all(),
        on="t.k = s.k AND t.k IN (SELECT 1)",
    ),
    refused(
        "subquery_in_a_clause_condition",
        "DELTA_UNSUPPORTED_SUBQUERY",
        update_all("s.v > (SELECT 1)"),
    ),
    refused(
        "subquery_in_a_by_source_condition",
        "DELTA_UNSUPPORTED_SUBQUERY",
        by_source_delete("EXISTS (SELECT 1)"),
    ),
    refused(
        "aggregate_in_the_match_condition",
        "DELTA_AGGREGATION_NOT_SUPPORTED",
        update_all(),
        on="t.k = max(s.k)",
    ),
    refused(
        "aggregate_in_a_clause_condition", "DELTA_AGGREGATION_NOT_SUPPORTED", delete("sum(s.v) > 1")
    ),
    refused("aggregate_in_a_value", "UNSUPPORTED_EXPR_FOR_OPERATOR", update({"v": "max(s.v)"})),
    refused(
        "window_function_in_the_match_condition",
        "UNSUPPORTED_EXPR_FOR_OPERATOR",
        update_all(),
        on="t.k = row_number() OVER (ORDER BY s.k)",
    ),
    refused(
        "window_function_in_a_clause_condition",
        "UNSUPPORTED_EXPR_FOR_OPERATOR",
        update_all("row_number() OVER (ORDER BY s.k) = 1"),
    ),
    refused(
        "generator_in_the_match_condition",
        "UNSUPPORTED_GENERATOR.OUTSIDE_SELECT",
        update_all(),
        on="t.k = explode(array(s.k))",
    ),
    refused(
        "generator_in_a_value",
        "UNSUPPORTED_GENERATOR.OUTSIDE_SELECT",
        update({"v": "explode(array(s.v))"}),
    ),
    refused(
        "random_number_in_the_match_condition",
        "DELTA_NON_DETERMINISTIC_FUNCTION_NOT_SUPPORTED",
        update_all(),
        on="t.k = s.k AND rand() < 0.5",
    ),
    refused(
        "random_number_in_a_clause_condition",
        "DELTA_NON_DETERMINISTIC_FUNCTION_NOT_SUPPORTED",
        insert_all("rand() < 0.5"),
    ),
    refused("column_set_twice", "DELTA_CONFLICT_SET_COLUMN", update({"v": "s.v", "V": "s.k"})),
    refused(
        "column_inserted_twice",
        "DELTA_DUPLICATE_COLUMNS_ON_INSERT",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        "WHEN NOT MATCHED THEN INSERT (k, v, v) VALUES (s.k, s.v, s.v)",
    ),
    refused(
        "more_columns_than_values",
        "MERGE_INSERT_VALUE_COUNT_MISMATCH",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k)",
    ),
    refused(
        "struct_set_beside_one_of_its_fields",
        "DELTA_CONFLICT_SET_COLUMN",
        update({"a": "NULL", "a.b": "s.v"}),
        target=[(1, (10, 11))],
        target_schema=STRUCT,
    ),
    refused(
        "insert_of_a_nested_field",
        "DELTA_UNSUPPORTED_NESTED_FIELD_IN_OPERATION",
        insert({"k": "s.k", "a.b": "s.v"}),
        target=[(1, (10, 11))],
        target_schema=STRUCT,
    ),
    refused(
        "update_of_a_field_inside_an_array",
        "DELTA_UNSUPPORTED_NESTED_FIELD_IN_UPDATE",
        update({"a.b": "s.v"}),
        target=[(1, [(10, 11)])],
        target_schema="k INT, a ARRAY<STRUCT<b: INT, c: INT>>",
    ),
    refused(
        "unknown_column_in_the_match_condition",
        "DELTA_MERGE_UNRESOLVED_EXPRESSION",
        update_all(),
        on="t.k = s.nonesuch",
    ),
    refused(
        "unknown_column_in_a_clause_condition",
        "DELTA_MERGE_UNRESOLVED_EXPRESSION",
        delete("t.nonesuch = 1"),
    ),
    refused(
        "unknown_column_that_is_set",
        "DELTA_MERGE_UNRESOLVED_EXPRESSION",
        update({"nonesuch": "s.v"}),
    ),
    refused(
        "unknown_column_in_an_inserted_value",
        "DELTA_MERGE_UNRESOLVED_EXPRESSION",
        insert({"k": "s.nonesuch"}),
    ),
    refused(
        "target_column_in_an_inserted_value",
        "DELTA_MERGE_UNRESOLVED_EXPRESSION",
        insert({"k": "t.k"}),
    ),
    refused(
        "source_column_in_a_by_source_value",
        "DELTA_MERGE_UNRESOLVED_EXPRESSION",
        by_source_update({"v": "s.v"}),
    ),
    refused(
        "column_of_both_sides_without_a_name", "AMBIGUOUS_REFERENCE", update_all(), on="k = s.k"
    ),
    refused(
        "condition_that_is_no_boolean",
        "JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE",
        update_all(),
        on="t.k + s.k",
    ),
    refused(
        "unconditional_matched_clause_before_another",
        "NON_LAST_MATCHED_CLAUSE_OMIT_CONDITION",
        update_all(),
        delete("s.v = 1"),
    ),
    refused(
        "unconditional_insert_before_another",
        "NON_LAST_NOT_MATCHED_BY_TARGET_CLAUSE_OMIT_CONDITION",
        insert_all(),
        insert({"k": "s.k"}, "s.v = 1"),
    ),
    refused(
        "unconditional_by_source_clause_before_another",
        "NON_LAST_NOT_MATCHED_BY_SOURCE_CLAUSE_OMIT_CONDITION",
        by_source_delete(),
        by_source_update({"v": "0"}, "t.v = 20"),
    ),
    refused(
        "source_column_found_twice",
        "AMBIGUOUS_REFERENCE",
        sql="MERGE INTO {target} t USING (SELECT k, v, v + 1 AS v FROM {source}) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = s.v",
    ),
)
