"""The shared list of merge cases, one module per family."""

from tests.merge_cases import (
    ambiguity,
    by_source,
    column_mapping,
    conditions,
    constraints,
    evolution,
    extreme_keys,
    filled_in,
    identity_and_row_ids,
    keys,
    layouts,
    matched,
    names,
    nested_evolution,
    not_matched,
    partitions,
    rules,
    source_queries,
    sources,
    statement_errors,
    store_assignment,
    stored_values,
    texts_of_limited_length,
    type_widening,
    wide_and_deep,
)
from tests.merge_cases.case import MergeCase

CASES: tuple[MergeCase, ...] = (
    *matched.CASES,
    *not_matched.CASES,
    *by_source.CASES,
    *ambiguity.CASES,
    *keys.CASES,
    *extreme_keys.CASES,
    *conditions.CASES,
    *sources.CASES,
    *source_queries.CASES,
    *names.CASES,
    *statement_errors.CASES,
    *stored_values.CASES,
    *store_assignment.CASES,
    *texts_of_limited_length.CASES,
    *constraints.CASES,
    *rules.CASES,
    *filled_in.CASES,
    *identity_and_row_ids.CASES,
    *evolution.CASES,
    *nested_evolution.CASES,
    *type_widening.CASES,
    *layouts.CASES,
    *partitions.CASES,
    *column_mapping.CASES,
    *wide_and_deep.CASES,
)

CASES_BY_NAME = {case.name: case for case in CASES}

assert len(CASES_BY_NAME) == len(CASES), "two merge cases have one name"
