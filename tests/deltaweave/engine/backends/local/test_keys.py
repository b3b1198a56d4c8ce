"""Keys that the statement compares as a wider type, on the driver and by built-in MERGE."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.merge_cases.case import MergeCase, insert, update
from tests.support.oracles import Stage, assert_outcome

pytestmark = pytest.mark.usefixtures("switched_on")

EXACT = (1 << 53) - 1  # the greatest whole number below which doubles hold all


@dataclass(frozen=True)
class Wider:
    """A column of the target, another of the source, and the keys whose rows match."""

    target: str
    source: str
    of_target: Sequence[Any]
    of_source: Sequence[Any]
    matching: Sequence[Any]
    here: bool = True
    partitioned: bool = False


CASES = {
    "whole doubles": Wider("BIGINT", "DOUBLE", [0, 1, -5], [1.0, -5.0, 7.0], [1, -5]),
    "a negative zero": Wider("BIGINT", "DOUBLE", [0, 1], [-0.0], [0]),
    "fractions": Wider("BIGINT", "DOUBLE", [0, 1, 2], [1.5, 2.0], [2]),
    "no numbers": Wider("BIGINT", "DOUBLE", [0, 1], [math.nan, 1.0], [1]),
    "nulls": Wider("BIGINT", "DOUBLE", [None, 0], [None, 0.0], [0]),
    "the greatest exact double": Wider(
        "BIGINT", "DOUBLE", [EXACT, EXACT + 1, EXACT + 2], [float(EXACT), -float(EXACT)], [EXACT]
    ),
    # 2 to the power of 53 equals the next whole number, too, as doubles.
    "an inexact double": Wider(
        "BIGINT", "DOUBLE", [EXACT + 1, EXACT + 2, 5], [float(EXACT + 1)], [EXACT + 1, EXACT + 2],
        here=False,
    ),
    "an inexact double below zero": Wider(
        "BIGINT", "DOUBLE", [-EXACT - 1, -EXACT - 2], [-float(EXACT + 1)],
        [-EXACT - 1, -EXACT - 2], here=False,
    ),
    "infinity": Wider("BIGINT", "DOUBLE", [0, 1], [math.inf, -math.inf, 1.0], [1]),
    "great doubles and an INT": Wider("INT", "DOUBLE", [0, 1], [1e300, 2.0**53, 1.0], [1]),
    "doubles beyond an INT": Wider(
        "INT", "DOUBLE", [2**31 - 1, -(2**31)], [2.0**31, 2.0**31 - 1, -(2.0**31)],
        [2**31 - 1, -(2**31)],
    ),
    "floats": Wider("INT", "FLOAT", [16777217, 16777216, 3], [16777216.0, 2.5, 3.0], [16777216, 3]),
    "texts": Wider("INT", "STRING", [1, 2], ["1", "3"], [1]),
    "doubles beyond a TINYINT": Wider("TINYINT", "DOUBLE", [127, -128], [128.0, 127.0], [127]),
    "whole numbers beyond an INT": Wider(
        "INT", "BIGINT", [2**31 - 1, -(2**31), 0], [2**31, 2**31 - 1, -(2**31), -(2**31) - 1],
        [2**31 - 1, -(2**31)],
    ),
    # Their lowest 16 bits are those of 1.
    "whole numbers beyond a SMALLINT": Wider("SMALLINT", "INT", [1, 2], [65537, 2], [2]),
    "narrower whole numbers": Wider("BIGINT", "INT", [1, 2**31], [1, 5], [1]),
    "partitions": Wider("INT", "DOUBLE", [1, 2, 3], [1.0, 2.5, 3.0], [1, 3], partitioned=True),
}  # fmt: skip


def runs() -> Iterator[Any]:
    """Each case with both operators; in `make test` with one by turns, unless it has a null."""
    for place, (name, each) in enumerate(CASES.items()):
        for number, operator in enumerate(("=", "<=>")):
            is_told = place % 2 == number or None in each.of_target
            marks = [] if is_told else [pytest.mark.full_matrix]
            yield pytest.param(name, operator, id=f"{name}-{operator}", marks=marks)


@pytest.mark.minutes
@pytest.mark.parametrize(("name", "operator"), list(runs()))
def test_keys_of_a_wider_type_match_as_in_built_in_merge(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], name: str, operator: str
) -> None:
    each = CASES[name]
    matching = {*each.matching, *([None] if operator == "<=>" else [])}
    updated = [(k, int(k in matching)) for k in each.of_target]
    is_new = [not any(_equals(k, wide) for k in matching) for wide in each.of_source]
    inserted = [(None, 2) for new in is_new if new]
    case = MergeCase(
        name="wider_keys",
        target=[(k, 0) for k in each.of_target],
        source=[(k, 1) for k in each.of_source],
        clauses=(update({"v": "s.v"}), insert({"v": "2"})),
        on=f"t.k {operator} s.k",
        expected=[*updated, *inserted],
        target_schema=f"k {each.target}, v INT",
        source_schema=f"k {each.source}, v INT",
        partition_by=("k",) if each.partitioned else (),
    )
    stage = Stage(spark, case, tmp_path)
    theirs, ours = stage.by_oracle(), stage.by_sql()
    assert_outcome(case, ours, theirs)
    assert len(on_driver) == each.here


def _equals(key: Any, wide: Any) -> bool:
    if key is None or wide is None:
        return key is None and wide is None
    return float(key) == float(wide)  # also of a text


@pytest.mark.minutes
@pytest.mark.parametrize("files", [1, 3])
def test_each_of_two_keys_may_rule_a_row_out(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], files: int
) -> None:
    case = MergeCase(
        name="two_wider_keys",
        target=[(0, 0), (1, 0), (2, 0), (3, 0)],
        source=[
            (1.0, 1, 10),
            (2.5, 2, 20),  # the first key equals no whole number
            (0.5, 0, 30),
            (3.0, 1 << 40, 40),  # the second is beyond an INT
        ],
        clauses=(update({"v": "s.v"}),),
        on="t.k = s.a AND t.k = s.b",
        expected=[(0, 0), (1, 10), (2, 0), (3, 0)],
        target_schema="k INT, v INT",
        source_schema="a DOUBLE, b BIGINT, v INT",
        files=files,
    )
    stage = Stage(spark, case, tmp_path)
    theirs, ours = stage.by_oracle(), stage.by_sql()
    assert_outcome(case, ours, theirs)
    assert len(on_driver) == 1


@pytest.mark.minutes
def test_a_text_that_is_no_number_fails_as_in_built_in_merge(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    case = MergeCase(
        name="no_number",
        target=[(1, 0)],
        source=[("1", 1), ("abc", 2)],
        clauses=(update({"v": "s.v"}),),
        on="t.k = s.k",
        expected=[(1, 0)],
        target_schema="k INT, v INT",
        source_schema="k STRING, v INT",
    )
    stage = Stage(spark, case, tmp_path)
    theirs, ours = stage.by_oracle(), stage.by_sql()
    assert "CAST_INVALID_INPUT" in theirs.error_classes
    assert "CAST_INVALID_INPUT" in ours.error_classes
    assert not on_driver


@pytest.mark.minutes
def test_zeros_of_both_signs_are_one_key(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    case = MergeCase(
        name="both_zeros",
        target=[(0, 0)],
        source=[(0.0, 1), (-0.0, 2)],
        clauses=(update({"v": "s.v"}),),
        on="t.k = s.k",
        expected=[(0, 0)],
        target_schema="k BIGINT, v INT",
        source_schema="k DOUBLE, v INT",
    )
    stage = Stage(spark, case, tmp_path)
    theirs, ours = stage.by_oracle(), stage.by_sql()
    assert ours.error_classes == theirs.error_classes[:1]
    assert ours.rows == theirs.rows
    assert not on_driver
