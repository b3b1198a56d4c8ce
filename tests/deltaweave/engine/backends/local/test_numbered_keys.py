"""Keys that are looked up as numbers, beside Arrow's join."""

from __future__ import annotations

from math import prod

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaweave.engine import limits
from deltaweave.engine.backends.local.keys import SOURCE_NUMBER, NumberedKeys

KINDS = {
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-3, 3),
    # Two columns of so many numbers have too many together.
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3),
    pa.date32(): st.integers(-719162, 2932896).map(lambda day: pa.scalar(day, pa.date32()).as_py()),
    pa.bool_(): st.booleans(),
}


@st.composite
def _keys_and_rows(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """Distinct keys of one to three columns, and rows, many with one of them."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    key = st.tuples(*[KINDS[kind] for kind in kinds])
    keys = draw(st.lists(key, unique=True, max_size=12))
    # Values of several keys together are no key, mostly.
    mixed = st.tuples(*[st.sampled_from([row[i] for row in keys]) for i in range(len(kinds))])
    with_nulls = st.tuples(*[KINDS[kind] | st.none() for kind in kinds])
    rows = draw(st.lists((mixed | key | with_nulls) if keys else with_nulls, max_size=20))

    def table(of_rows: list[tuple[object, ...]], number: str) -> pa.Table:
        names = [f"k{i}" for i in range(len(kinds))]
        columns = [pa.array([row[i] for row in of_rows], kind) for i, kind in enumerate(kinds)]
        numbers = pa.array(range(len(of_rows)), pa.int64())
        return pa.table({number: numbers, **dict(zip(names, columns, strict=True))})

    return table(keys, SOURCE_NUMBER), table(rows, "row")


@pytest.mark.parametrize(
    "between", [0, limits.MAX_NUMBERS_BETWEEN_KEYS], ids=["sorted", "by place"]
)
@given(drawn=_keys_and_rows())
def test_the_rows_are_found_that_arrow_joins(
    between: int, drawn: tuple[pa.Table, pa.Table]
) -> None:
    keys, rows = drawn
    names = [name for name in keys.column_names if name != SOURCE_NUMBER]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAX_NUMBERS_BETWEEN_KEYS", between)
        numbered = NumberedKeys.of(keys)
    if numbered is None:
        assert prod(max(each) - min(each) + 1 for each in _whole(keys, names)) > 1 << 62
        return
    joined = rows.drop_null().join(keys, names, join_type="inner").sort_by("row")
    found = numbered.found_in(rows)
    assert found.column_names == ["row", SOURCE_NUMBER]
    assert found.to_pylist() == joined.select(found.column_names).to_pylist()


def _whole(keys: pa.Table, names: list[str]) -> list[list[int]]:
    integers = [
        keys[name].cast("int32") if keys[name].type == pa.date32() else keys[name] for name in names
    ]
    return [[int(value) for value in column.to_pylist()] for column in integers]


@pytest.mark.parametrize("kind", [pa.string(), pa.decimal128(19, 0), pa.float64(), pa.uint64()])
def test_keys_of_other_types_are_not_numbered(kind: pa.DataType) -> None:
    values = pa.array([1]).cast(kind)
    assert NumberedKeys.of(pa.table({SOURCE_NUMBER: [0], "k0": values})) is None
