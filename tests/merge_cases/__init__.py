"""The shared list of merge cases, one module per family."""

from tests.merge_cases import (
    ambiguity,
    by_source,
    constraints,
    evolution,
    keys,
    layouts,
    matched,
    names,
    nested_evolution,
    not_matched,
    partitions,
    sources,
    statement_errors,
    store_assignment,
    stored_values,
)
from tests.merge_cases.case import MergeCase

CASES: tuple[MergeCase, ...] = (
    *matched.CASES,
    *not_matched.CASES,
    *by_source.CASES,
    *ambiguity.CASES,
    *keys.CASES,
    *sources.CASES,
    *names.CASES,
    *statement_errors.CASES,
    *stored_values.CASES,
    *store_assignment.CASES,
    *constraints.CASES,
    *evolution.CASES,
    *nested_evolution.CASES,
    *layouts.CASES,
    *partitions.CASES,
)

CASES_BY_NAME = {case.name: case for case in CASES}

assert len(CASES_BY_NAME) == len(CASES), "two merge cases have one name"
