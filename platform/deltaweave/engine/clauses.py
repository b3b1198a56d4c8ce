"""The statement's clauses as columns, once for all strategies.

The columns say which clause takes a joined row, which one inserts a source row, what values they
give, and whether new rows break a constraint. Rows of the old target schema become rows of the
evolved one: new columns and fields are null. Evolution matches struct fields by name, at any depth,
also inside arrays and maps, and widens types where Delta's analysis allowed it.

The names of all columns that the engine adds to rows of target and source are here, too. No table
and no source has columns with their prefix: `resolve` refuses such statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from deltaweave.delta.jvm import constant, unique_number
from deltaweave.delta.log import is_collated
from deltaweave.delta.statement import ResolvedClause, ResolvedMerge, assignments
from deltaweave.identifiers import RESERVED_PREFIX

FILE = f"{RESERVED_PREFIX}file"
"""The file of a target row: its absolute, percent-encoded location."""
TARGET_ROW_ID = f"{RESERVED_PREFIX}row_id"
"""A number that is unique among the rows of a scan or, if asked for, of a file: the row index."""
SOURCE_ROW = f"{RESERVED_PREFIX}source_row"
"""The identity of the source row in a pair; null where no source row matches."""
SOURCE_ROW_ID = f"{RESERVED_PREFIX}source_row_id"
"""The unique number of a materialized source row."""
SOURCE_ROW_PRESENT = f"{RESERVED_PREFIX}source_row_present"
"""True in every source row, so that null in a joined row means that there is none."""
TARGET_ROW_PRESENT = f"{RESERVED_PREFIX}target_row_present"
"""True in every target row, so that null in a joined row means that there is none."""
NEW_ROW = f"{RESERVED_PREFIX}new_row"
"""In pairs on the driver, the number of the row that the pair's clause gives."""
ELSEWHERE = f"{RESERVED_PREFIX}elsewhere"
"""In pairs on the driver, whether the new row goes to another file than that of the old one."""
CLAUSE = f"{RESERVED_PREFIX}clause"
"""The index in the statement of the clause that takes a row, or `NO_CLAUSE`."""
INSERT_CLAUSE = f"{RESERVED_PREFIX}insert_clause"
"""The index of the insert clause that takes a source row without a match, or `NO_CLAUSE`."""
MATCHES = f"{RESERVED_PREFIX}matches"
"""How many source rows match a target row."""
INSERTABLE = f"{RESERVED_PREFIX}insertable"
"""Whether an insert clause would take a source row if it matched nothing."""
NUMBER = f"{RESERVED_PREFIX}number"
"""File and row index of a target row as one number."""
CLAUSE_VALUES = f"{RESERVED_PREFIX}values"
"""The values that a clause gives a row, as one struct."""
READ = f"{RESERVED_PREFIX}read"
"""A column of the source or the target that a clause reads; followed by its index among these."""
KEY = f"{RESERVED_PREFIX}key"
"""The value that an equality of the ON condition compares; followed by the equality's index."""
IS_DELETED = f"{RESERVED_PREFIX}is_deleted"
"""Whether a clause deletes the row."""
WIDTH = f"{RESERVED_PREFIX}width"
"""The bytes of a row, as `source.prepared` counts them."""
SOURCE_WIDTH = f"{RESERVED_PREFIX}source_width"
"""The bytes of a source row, beside columns that have a width of their own."""
BREAKS_CONSTRAINT = f"{RESERVED_PREFIX}breaks_constraint"
"""Whether the new values of a row break a constraint of the table."""

NO_CLAUSE = -1
"""`CLAUSE` of a row that no clause takes."""


def clause_taken(merge: ResolvedMerge) -> Column:
    """Return the index of the first clause that takes a row of target joined with source, or -1.

    Each condition is computed once per joined row. For a joined row without a source row, the WHEN
    NOT MATCHED BY SOURCE clauses decide.
    """
    index = {id(clause): i for i, clause in enumerate(merge.clauses)}

    def taken(clause: ResolvedClause) -> Column:
        number = constant(merge.spark, index[id(clause)])
        if merge.skips_unchanged and clause.action == "update":
            return F.when(changes_nothing(merge, clause), NO_CLAUSE).otherwise(number)
        return number

    def first(clauses: Sequence[ResolvedClause]) -> Column:
        none = constant(merge.spark, NO_CLAUSE)
        return reduce(
            lambda later, clause: (
                taken(clause)
                if clause.condition is None
                else F.when(clause.condition, taken(clause)).otherwise(later)
            ),
            reversed(clauses),
            none,
        )

    without_source_row = F.col(SOURCE_ROW_PRESENT).isNull()
    by_source = first(merge.of_kind("not_matched_by_source"))
    return F.when(without_source_row, by_source).otherwise(first(merge.of_kind("matched")))


def asked_after_join(merge: ResolvedMerge, clause: Column) -> Column:
    """Evaluate the clause that takes a row after the join before it, where rows are filtered by it.

    Spark would evaluate conditions of one side before the join, where they may fail for rows that
    the clause is not for. A filter whose value may differ each time stays where it is.
    """
    return F.when(unique_number(merge.spark) >= 0, clause)


def insert_indexes(merge: ResolvedMerge) -> list[int]:
    """Return the indexes of the insert clauses in the statement."""
    return [i for i, clause in enumerate(merge.clauses) if clause.action == "insert"]


def first_insert(merge: ResolvedMerge) -> Column:
    """Return the index of the first insert clause that takes an unmatched source row, or -1."""
    return _first_index(merge, "not_matched")


def first_match(merge: ResolvedMerge) -> Column:
    """Return the index of the first WHEN MATCHED clause that takes a source row's matches, or -1.

    It is known without the matches if all conditions are of the source alone.
    """
    return _first_index(merge, "matched")


def _first_index(merge: ResolvedMerge, kind: str) -> Column:
    taken: Column | None = None
    for i, clause in reversed(list(enumerate(merge.clauses))):
        if clause.kind == kind:
            taken = _index_if(merge, clause.condition, i, taken)
    return constant(merge.spark, NO_CLAUSE) if taken is None else taken


def _index_if(
    merge: ResolvedMerge, condition: Column | None, index: int, otherwise: Column | None
) -> Column:
    number = constant(merge.spark, index)
    if condition is None:
        return number
    none = constant(merge.spark, NO_CLAUSE) if otherwise is None else otherwise
    return F.when(condition, number).otherwise(none)


def insertable(merge: ResolvedMerge) -> Column | None:
    """Return whether an insert clause takes an unmatched source row; None if not asked for.

    It is not asked for if there is no insert clause or one without a condition. Nor is it if a
    condition calls a Python function: MERGE evaluates these conditions for unmatched rows only, for
    other rows they may fail, and the failure of a Python function cannot be caught.
    """
    inserts = merge.of_kind("not_matched")
    if not inserts or any(clause.condition is None for clause in inserts):
        return None
    conditions = [clause.condition_or_null() for clause in inserts]
    if any(condition is None for condition in conditions):
        return None
    # A condition may fail for a row that matches; such a row is not counted. If it fails for a row
    # without a match, the merge fails.
    taken = [F.coalesce(each, F.lit(False)) for each in conditions if each is not None]
    return reduce(Column.__or__, taken)


def updated(
    merge: ResolvedMerge, before: Sequence[Column], *, and_inserted: bool = False
) -> list[Column]:
    """Return the columns' values after the update clause that takes the row, if one does.

    Args:
        before: The columns' values before the merge.
        and_inserted: Whether the values of insert clauses are applied, too.
    """
    actions = ("update", "insert") if and_inserted else ("update",)
    after = []
    for index, value in enumerate(before):
        for i, clause in enumerate(merge.clauses):
            if clause.action in actions:
                value = F.when(F.col(CLAUSE) == i, clause.values[index]).otherwise(value)
        after.append(value)
    return after


def columns_before(merge: ResolvedMerge) -> list[Column]:
    """Return the target's columns in the evolved schema, before any clause changes them."""
    return evolved_columns(
        merge.target_columns,
        merge.target_schema,
        merge.evolved_schema,
        case_sensitive=merge.is_case_sensitive,
    )


def changes_nothing(merge: ResolvedMerge, clause: ResolvedClause) -> Column:
    """Return whether an update leaves a row's values, null-safe; false if that is not known.

    It is not known for maps and variants, which cannot be compared, for texts with a collation,
    which may be equal and not the same, and for random values, which must not be computed twice.
    """
    same: Column = F.lit(True)
    columns = zip(
        merge.evolved_schema, columns_before(merge), assignments(merge, clause), strict=True
    )
    for field, before, assigned in columns:
        if assigned.is_column_itself:
            continue
        if not is_comparable(field.dataType) or not assigned.is_deterministic:
            return F.lit(False)
        same = same & assigned.value.eqNullSafe(before)
    return same


def is_comparable(data_type: DataType) -> bool:
    """Return whether `<=>` compares values of a type."""
    if isinstance(data_type, StructType):
        return all(is_comparable(field.dataType) for field in data_type.fields)
    if isinstance(data_type, ArrayType):
        return is_comparable(data_type.elementType)
    return not isinstance(data_type, MapType | VariantType) and not is_collated(data_type)


def evolved_columns(
    columns: Sequence[Column], old: StructType, new: StructType, *, case_sensitive: bool
) -> list[Column]:
    """Return one Column per field of `new`, computed from the columns of `old`.

    Args:
        columns: The target's columns, in the order of `old`.
        new: The evolved schema: `old` with columns, nested fields or wider types added.
        case_sensitive: Whether names differing in case are different (`spark.sql.caseSensitive`).
    """
    known = {_name_key(field.name, case_sensitive): i for i, field in enumerate(old.fields)}
    evolved = []
    for field in new.fields:
        index = known.get(_name_key(field.name, case_sensitive))
        if index is None:
            evolved.append(F.lit(None).cast(field.dataType))
        else:
            was = old.fields[index].dataType
            evolved.append(_evolve(columns[index], was, field.dataType, case_sensitive))
    return evolved


def _evolve(value: Column, old: DataType, new: DataType, case_sensitive: bool) -> Column:
    if _same(old, new):
        return value
    if isinstance(old, StructType) and isinstance(new, StructType):
        fields = [
            _evolved_field(value, field, old, case_sensitive).alias(field.name)
            for field in new.fields
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        was, becomes = old.elementType, new.elementType
        return F.transform(value, lambda item: _evolve(item, was, becomes, case_sensitive))
    if isinstance(old, MapType) and isinstance(new, MapType):
        old_map, new_map = old, new
        with_keys = F.transform_keys(
            value, lambda k, _: _evolve(k, old_map.keyType, new_map.keyType, case_sensitive)
        )
        return F.transform_values(
            with_keys,
            lambda _, v: _evolve(v, old_map.valueType, new_map.valueType, case_sensitive),
        )
    return value.cast(new)


def _evolved_field(
    struct: Column, field: StructField, old: StructType, case_sensitive: bool
) -> Column:
    wanted = _name_key(field.name, case_sensitive)
    for known in old.fields:
        if _name_key(known.name, case_sensitive) == wanted:
            return _evolve(
                struct.getField(known.name), known.dataType, field.dataType, case_sensitive
            )
    return F.lit(None).cast(field.dataType)


def _name_key(name: str, case_sensitive: bool) -> str:
    return name if case_sensitive else name.lower()


def _same(old: DataType, new: DataType) -> bool:
    """Return whether types are equal except for nullability and metadata, which no cast changes."""
    return old.simpleString() == new.simpleString()


def with_broken(
    rows: DataFrame,
    values: str,
    names: Sequence[str],
    conditions: Sequence[Column],
    broken: str,
) -> DataFrame:
    """Add to the rows whether one of the conditions is false or null for the values.

    Args:
        rows: Rows with the engine's own columns alone.
        values: The column with the values (struct of `v0`, `v1`, … in the order of the names).
        names: The names by which the conditions know them.
        conditions: One condition at least.
    """
    kept = rows.columns
    named = [F.col(f"{values}.v{i}").alias(name) for i, name in enumerate(names)]
    holds = reduce(and_, [F.coalesce(each, F.lit(False)) for each in conditions])
    return rows.select(*kept, *named).select(*kept, (~holds).alias(broken))
