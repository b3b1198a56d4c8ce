from __future__ import annotations

import re

import pytest

from benchmarks.merge import cases
from benchmarks.merge.case import Statement

# As in Delta's MergeTestCases: files, rows matched, rows not matched.
INSERTS = [(0.05, None, 0.05), (0.05, None, 0.5), (0.05, None, 1.0)]
UPSERTS = [
    (0.05, 0.1, 0.01),
    (0.05, 0.0, 0.1),
    (0.05, 0.01, 0.1),
    (0.05, 0.1, 0.0),
    (0.5, 0.01, 0.001),
    (1.0, 0.01, 0.001),
    (0.05, 0.5, 0.001),
    (0.05, 0.99, 0.001),
    (0.05, 1.0, 0.001),
]
DELTAS = [
    *(("single_insert_only", *each) for each in INSERTS),
    *(("multiple_insert_only", *each) for each in INSERTS),
    ("delete_only", 0.05, 0.05, None),
    *(("upsert", *each) for each in UPSERTS),
]


def _fractions(name: str) -> tuple[str, float | None, float | None, float | None]:
    found = re.fullmatch(
        r"([a-z_]+)_fileMatchedFraction_([\d.]+)"
        r"(?:_rowMatchedFraction_([\d.]+))?(?:_rowNotMatchedFraction_([\d.]+))?",
        name,
    )
    assert found is not None, name
    kind, *fractions = found.groups()
    files, matched, not_matched = (None if each is None else float(each) for each in fractions)
    return kind, files, matched, not_matched


def test_the_16_cases_are_those_of_deltas_benchmark() -> None:
    found = [_fractions(case.name) for case in cases.delta_cases()]

    assert len(found) == 16
    assert found == DELTAS


def test_only_deltas_cases_count_in_the_geometric_mean() -> None:
    assert all(case.is_deltas for case in cases.delta_cases())
    assert not any(case.is_deltas for case in cases.further_cases())


def test_names_are_unique_and_each_chooses_its_case() -> None:
    everything = [*cases.delta_cases(), *cases.further_cases()]
    names = [case.name for case in everything]

    assert len(set(names)) == len(names)
    assert [case.name for case in cases.chosen([names[20], names[3]], everything)] == [
        names[3],
        names[20],
    ]
    assert len(cases.chosen([], everything)) == 16


def test_an_unknown_name_is_an_error_that_names_it() -> None:
    with pytest.raises(cases.UnknownCaseError, match="upsert_all"):
        cases.chosen(["upsert_all", "small_into_100k"], cases.further_cases())


def test_a_statement_takes_its_target_by_path(tmp_path) -> None:
    statement = Statement("source", "t.id = s.id", ("WHEN MATCHED THEN DELETE",))

    assert statement.into(tmp_path).splitlines() == [
        f"MERGE INTO delta.`{tmp_path}` t",
        "USING source s",
        "ON t.id = s.id",
        "WHEN MATCHED THEN DELETE",
    ]
