"""One row for each key: what comes several times in a run is reduced to the newest, or refused.

A merge of several partitions has all their rows as one source, in which a key may come once for
each partition. Merged one after another, the newest would win; in one statement they are a conflict
where the table has the key, and several new rows where it lacks it. A merge that would give
anything else than its partitions one after another is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster import PartitionsDefinition
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from dagster_deltaweave.io_manager.frames import viewed
from dagster_deltaweave.io_manager.target_table import table_columns
from dagster_deltaweave.partitions import Positions, partition_predicate
from dagster_deltaweave.tables import (
    TYPE_WIDENING,
    Changes,
    ChangesOfPartitions,
    MergeDeclaration,
)
from deltaweave.changes.conversions import plain, wider
from deltaweave.changes.table_columns import TableColumns
from deltaweave.delta.commit import is_unwritten
from deltaweave.delta.jvm import grouped, parsed_expression, translated
from deltaweave.delta.statement import (
    OF_LIMITED_LENGTH,
    EqualColumns,
    MergeOutline,
    outline,
    parse_statement,
)
from deltaweave.errors import AmbiguousMatchError, SourceError, StatementError
from deltaweave.identifiers import RESERVED_PREFIX, column, spelled_as, table_name, unquoted

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

    from deltaweave import Table
    from deltaweave.clauses import Clause


DEPENDS = "depends"
"""What a row leaves of its key depends on the table's row, too."""

_ITSELF, _NOTHING = "itself", "nothing"


def insertable_rows(rows: DataFrame, declaration: MergeDeclaration) -> DataFrame:
    """Return the rows that a clause inserts where the table lacks their key."""
    spark = rows.sparkSession
    inserts = [takes(spark, each) for each in declaration.clauses if each.kind == "not_matched"]
    return rows.alias("s").where(reduce(lambda one, other: one | other, inserts, F.lit(False)))


def left_of_key(rows: DataFrame, declaration: MergeDeclaration, columns: Collection[str]) -> Column:
    """Return what a row leaves of its key: itself, nothing, or `DEPENDS`."""
    clauses = declaration.clauses
    matched, unmatched = (
        [clause for clause in clauses if clause.kind == kind] for kind in ("matched", "not_matched")
    )
    written = {_written_columns(clause, rows) for clause in clauses if clause.action != "delete"}
    if len(written) > 1 or len(matched) + len(unmatched) < len(clauses):
        return F.lit(DEPENDS)
    deletes = any(clause.action == "delete" for clause in clauses)
    names = {name for values in written for name, _ in values}
    if deletes and {name.lower() for name in columns} - names:
        return F.lit(DEPENDS)  # a row that was deleted has lost its other columns
    spark = rows.sparkSession
    try:
        where_present = _left_by_first_clause(spark, matched, otherwise=DEPENDS)
        # Without inserts, older rows leave nothing where the table lacks the key.
        where_absent = (
            _left_by_first_clause(spark, unmatched, otherwise=_NOTHING)
            if unmatched
            else where_present
        )
        rows.select(where_present, where_absent).schema  # noqa: B018  conditions may name the table
    except AnalysisException:
        return F.lit(DEPENDS)
    return F.when(where_present == where_absent, where_present).otherwise(DEPENDS)


def _left_by_first_clause(
    spark: SparkSession, clauses: Sequence[Clause], *, otherwise: str
) -> Column:
    """Return what a row leaves of its key by the first clause that takes the row."""
    left = F.lit(otherwise)
    for clause in reversed(clauses):
        leaves = F.lit(_NOTHING if clause.action == "delete" else _ITSELF)
        left = F.when(takes(spark, clause), leaves).otherwise(left)
    return left


def _written_columns(clause: Clause, rows: DataFrame) -> frozenset[tuple[str, str]]:
    """Return the columns that a clause writes, with values, to compare with other clauses'."""
    if clause.assignments is None:
        return frozenset((name.lower(), "its own") for name in rows.columns)
    values = clause.assignments.items()
    return frozenset((unquoted(name).lower(), str(value)) for name, value in values)


def takes(spark: SparkSession, clause: Clause) -> Column:
    """Return whether a clause takes a row; a condition that is null takes none, as in MERGE."""
    if clause.condition is None:
        return F.lit(True)
    return F.coalesce(parsed_expression(spark, str(clause.condition)), F.lit(False))


_POSITION, _RANK, _COUNT, _LEAVES, _STORED, _IS_CHANGED, _IS_OF_ONE = (
    f"{RESERVED_PREFIX}{each}"
    for each in ("position", "rank", "count", "leaves", "stored", "is_changed", "is_of_one")
)
_KEYS_SHOWN = 10  # keys in an error
_SHOWN_NAMES = {_COUNT: "rows"}

_STORED_AS_ONE = "they differ only until the table stores them in its types"
_WAYS = (
    "Return {partition key: rows} from the asset's function, or declare partition_expr or "
    "sequence_by, so that the newest row counts; or run the partitions one by one "
    "(BackfillPolicy.multi_run())."
)
_MULTI_RUN = "Run the partitions one by one (BackfillPolicy.multi_run())"
_ONE_BY_ONE = f"{_MULTI_RUN}, or return one row for each key."
_OR_KEYS = (
    f"{_MULTI_RUN}; or declare keys= in place of on= or merge_text, and return {{partition key: "
    "rows}, so that the newest row counts."
)
_ONE_ROW_EACH = (
    "Return one row for each key and partition, or declare sequence_by, the column that says which "
    "is the newest."
)
_ONE_ROW = (
    "Return one row for each key; or declare sequence_by, the column that says which is the "
    "newest; or unique_keys=False, with which a merge inserts all rows of a key that is new."
)


@dataclass(frozen=True)
class RunPartitions:
    """The partitions of a run; rows of a newer one replace those of an older one.

    Attributes:
        definition: The asset's partitions; None for an asset without partitions.
        keys: The run's partitions whose rows there are.
        positions: Return a partition's position; None for partitions without an order.
    """

    definition: PartitionsDefinition[str] | None
    keys: Sequence[str]
    positions: Positions | None


def one_row_for_each_key(
    table: Table,
    declaration: MergeDeclaration,
    changes: Changes,
    run: RunPartitions,
    *,
    is_rebuilt: bool,
) -> DataFrame:
    """Return the changes with one row for each key that they have; the newest one wins.

    `sequence_by` decides which row is newer, then the order of the partitions. The partition of a
    row is known by `partition_expr`, or if the function returns the rows of each partition. A row
    with a null among its keys matches nothing, and stays.

    Raises:
        AmbiguousMatchError: It names keys for which nothing decides.
        StatementError: The merge of several partitions would not do what they do one by one.
    """
    if len(run.keys) > 1:
        _refuse_other_results(table, declaration, changes, run)
    if not (declaration.keys and declaration.unique_keys):
        given: DataFrame = changes.rows
        return given
    with translated(table.path_or_name, otherwise=SourceError):
        rows = _one_row_for_each_key(table, declaration, changes, run, is_rebuilt=is_rebuilt)
        _refuse_changed_keys(table, declaration, rows, is_rebuilt=is_rebuilt)
        return rows


def _refuse_other_results(
    table: Table, declaration: MergeDeclaration, changes: Changes, run: RunPartitions
) -> None:
    """Refuse partitions that a merge of all of them would apply otherwise than one by one."""
    rows: DataFrame = changes.rows
    with viewed(rows) as view:
        text = declaration.statement(table_name(table.path_or_name), view, rows.columns)
        merge = outline(parse_statement(rows.sparkSession, text), view, rows.columns)
    at_once = f"{len(run.keys)} partitions are merged at once, and"
    if merge is None:
        return  # the merge is refused for it
    if merge.acts_by_source:
        raise StatementError(
            f"{at_once} a clause WHEN NOT MATCHED BY SOURCE would spare the rows of all of them. "
            "One by one, each partition spares its own rows alone.",
            table=table.path_or_name,
            hint=f"{_MULTI_RUN}.",
        )
    kept = {each.target for each in merge.equal}
    if declaration.keys and declaration.unique_keys:
        assigned = [key for key in declaration.keys if key.lower() not in kept]
        if assigned:
            raise StatementError(
                f"{at_once} a clause gives the table's {', '.join(assigned)} another value than "
                "the changes', which may be a key of another partition's row.",
                table=table.path_or_name,
                hint=f"{_MULTI_RUN}.",
            )
    elif not declaration.keys and (merge.inserts or merge.updates):
        if merge.equal:
            _refuse_rows_of_several(table, declaration, changes, run, merge)
        elif declaration.order != "any" and run.positions is not None and not _is_apart(merge):
            raise StatementError(
                f"{at_once} the condition has no columns that are equal (t.x = s.y) and that the "
                "clauses keep so: a row of one partition may match what another's row leaves.",
                table=table.path_or_name,
                hint=f'{_MULTI_RUN}, or declare order="any" if their order does not matter.',
            )


def _is_apart(merge: MergeOutline) -> bool:
    """Return whether no row matches what another one leaves."""
    return merge.never_matches or not (merge.inserts or merge.changes_matches)


def _refuse_rows_of_several(
    table: Table,
    declaration: MergeDeclaration,
    changes: Changes,
    run: RunPartitions,
    merge: MergeOutline,
) -> None:
    """Refuse rows of several partitions, or of unknown ones, that match the same rows.

    MERGE would insert all of them where the table lacks such a row.
    """
    numbers = {key: number for number, key in enumerate(run.keys)}
    rows = None
    if merge.source is None:
        rows = _with_ranks(table, declaration, changes, run, numbers)
    if rows is None:
        rows = changes.rows if merge.source is None else merge.source
        rows = rows.withColumn(_POSITION, F.lit(None).cast("int"))
    with translated(table.path_or_name, otherwise=SourceError):
        compared = _compared_columns(table, declaration, rows, merge.equal)
        position, count = column(_POSITION), F.count(F.lit(1))
        is_of_one = (F.count(position) == count) & (F.min(position) == F.max(position))
        found = grouped(
            compared,
            [column(name) for name in compared.columns if name != _POSITION],
            [count.alias(_COUNT), is_of_one.alias(_IS_OF_ONE)],
        ).where((column(_COUNT) > 1) & ~column(_IS_OF_ONE))
        why = (
            f"{len(run.keys)} partitions are merged at once: only with keys= the newest row counts"
        )
        _refuse(table, found.drop(_IS_OF_ONE), why, _OR_KEYS)


def _compared_columns(
    table: Table, declaration: MergeDeclaration, rows: DataFrame, equal: Sequence[EqualColumns]
) -> DataFrame:
    """Return the columns that a condition compares, as the table stores them, and the position."""
    spelled = spelled_as(rows.columns, [each.source for each in equal])
    values = {name: column(name) for name in spelled}
    if (columns := _stored_columns(table, declaration)) is not None:
        keys = {each.target: name for each, name in zip(equal, spelled, strict=True)}
        for key, held in _converted_keys(table, declaration, rows, columns, keys).items():
            value = column(keys[key]).try_cast(held)
            values[keys[key]] = columns.as_stored(key, value, held)
    compared = rows.select(
        *(value.alias(name) for name, value in values.items()), column(_POSITION)
    )
    # A null is equal to nothing, except by `<=>`.
    for each, name in zip(equal, spelled, strict=True):
        compared = compared if each.null_safe else compared.where(column(name).isNotNull())
    return compared


def keys_may_be_elsewhere(declaration: MergeDeclaration) -> bool:
    """Return whether rows of several partitions may have the same keys, which are to be unique."""
    given = declaration.partition_expr
    expressions = {given} if isinstance(given, str) else {*(given or {}).values()}
    keys = {key.lower() for key in declaration.keys}
    by_keys = bool(expressions) and {unquoted(each).lower() for each in expressions} <= keys
    return bool(keys) and declaration.unique_keys and not by_keys


def refuse_keys_elsewhere(
    table: Table, declaration: MergeDeclaration, rows: DataFrame, predicate: str
) -> None:
    """Refuse rows that replace those of a predicate, and whose keys other rows of the table have.

    `rows` are the rows as the table gets them.

    Raises:
        AmbiguousMatchError: It names some of these keys, which would come twice in the table.
    """
    keys, names = declaration.keys, {name.lower() for name in rows.columns}
    # A key that no clause inserts is null, which is equal to nothing.
    if not names.issuperset(map(str.lower, keys)):
        return
    with translated(table.path_or_name, operation="full refresh", otherwise=SourceError):
        is_replaced = F.coalesce(parsed_expression(table.spark, predicate), F.lit(False))
        elsewhere = table.read().where(~is_replaced).alias("t")
        equal_keys = [column("s", key) == column("t", key) for key in keys]
        held = rows.alias("s").join(elsewhere, equal_keys, "left_semi").select(*map(column, keys))
        found = [row.asDict() for row in held.limit(_KEYS_SHOWN).collect()]
    if found:
        raise AmbiguousMatchError(
            "keys of the refreshed partitions are also in rows of others, and would be in the "
            "table twice.",
            found,
            table=table.path_or_name,
            operation="full refresh",
            hint="Refresh the partitions that have these keys in the same run, or all partitions.",
        )


def _one_row_for_each_key(
    table: Table,
    declaration: MergeDeclaration,
    changes: Changes,
    run: RunPartitions,
    *,
    is_rebuilt: bool,
) -> DataFrame:
    rows: DataFrame = changes.rows
    repeated = _repeated_keys(rows, declaration.keys)
    if repeated.isEmpty():
        return rows
    is_of_several = len(run.keys) > 1
    positioned = _with_positions(table, declaration, changes, run)
    if positioned is not None:
        newest, problems = _newest(table, declaration, positioned)
        if is_of_several:
            for undecided, why, hint in problems:
                _refuse(table, undecided, why, hint)
        if is_of_several or all(undecided.isEmpty() for undecided, *_ in problems):
            return newest.drop(_POSITION, _RANK, _COUNT, _LEAVES)
    elif is_of_several:
        why = f"{len(run.keys)} partitions are merged at once, and nothing gives their order"
        _refuse(table, repeated, why, _WAYS)
    return _with_new_keys_once(table, declaration, rows, is_rebuilt)


def _refuse_changed_keys(
    table: Table, declaration: MergeDeclaration, rows: DataFrame, *, is_rebuilt: bool
) -> None:
    """Refuse new keys that the table's types would change, or several that they would make one.

    MERGE compares a key as the source has it, and would insert such rows again.
    """
    columns, keys = _stored_columns(table, declaration), declaration.keys
    if columns is None:
        return
    names = dict(zip(keys, spelled_as(rows.columns, keys), strict=True))
    if not (types := _converted_keys(table, declaration, rows, columns, names)):
        return
    try:
        found = _new_keys(declaration, rows, columns, types)
    except AnalysisException:  # MERGE refuses the comparison or the cast, and says why
        return
    if found.isEmpty():
        return
    if table.exists() and not is_rebuilt:
        found = _keys_missing_in(table, found, keys)
    changed_keys = found.where(column(_IS_CHANGED)).select(*map(column, keys))
    if changed := [row.asDict() for row in changed_keys.limit(_KEYS_SHOWN).collect()]:
        named = "; ".join(", ".join(f"{k}={v!r}" for k, v in key.items()) for key in changed)
        held = ", ".join(f"{key} is {columns.type_in_words(key)}" for key in types)
        raise SourceError(
            f"keys do not fit the table, whose {held}: {named}. Each run would insert them again.",
            table=table.path_or_name,
            hint="Return keys as the table stores them, or give the table a wider type.",
        )
    as_stored = [F.col(_STORED)[key].alias(key) for key in keys]
    _refuse(table, _repeated_keys(found.select(*as_stored), keys), _STORED_AS_ONE, _ONE_ROW)


def _converted_keys(
    table: Table,
    declaration: MergeDeclaration,
    rows: DataFrame,
    columns: TableColumns,
    keys: Mapping[str, str],
) -> dict[str, DataType]:
    """Return the keys whose values the table's types may change, with these types.

    `keys`: the table's column to the one of the rows.
    """
    policy, converted = declaration.schema_policy, {}
    may_widen = policy == "widen" or (policy != "strict" and _allows_widening(table))
    for key, name in keys.items():
        if key.lower() not in columns.fields:
            continue
        given, held = rows.schema[name], plain(columns.fields[key.lower()].dataType)
        source = plain(given.dataType)
        is_limited = columns.is_limited(key) and OF_LIMITED_LENGTH not in (given.metadata or {})
        is_widened = may_widen and wider(held, source) != held
        if is_limited or not (is_widened or wider(source, held) == held):
            converted[key] = held
    return converted


def _new_keys(
    declaration: MergeDeclaration,
    rows: DataFrame,
    columns: TableColumns,
    types: Mapping[str, DataType],
) -> DataFrame:
    """Return keys that clauses insert and that change when stored, or become equal to others."""
    spark, own = rows.sparkSession, F.lit(False)
    for clause in reversed([each for each in declaration.clauses if each.kind == "not_matched"]):
        takes_keys = F.lit(_inserts_as_they_are(clause, types))
        own = F.when(takes(spark, clause), takes_keys).otherwise(own)
    for key in declaration.keys:  # a null is equal to nothing, also in the table
        own = own & column("s", key).isNotNull()
    stored = {key: column(key) for key in declaration.keys}
    is_changed = F.lit(False)
    for key, held in types.items():
        stored[key] = columns.as_stored(key, column(key).try_cast(held), held)
        # A key that does not fit the type at all is null, and comparing it may be an error.
        differs = F.when(stored[key].isNull(), True).otherwise(stored[key] != column(key))
        is_changed = is_changed | differs
    key_columns = [*map(column, declaration.keys)]
    as_stored = F.struct(*(value.alias(key) for key, value in stored.items()))
    count = F.count(F.lit(1)).over(Window.partitionBy(_STORED))
    keys = rows.alias("s").where(own).select(*key_columns).distinct()
    found = keys.select(*key_columns, as_stored.alias(_STORED), is_changed.alias(_IS_CHANGED))
    found = found.withColumn(_COUNT, count)
    return found.where(column(_IS_CHANGED) | (column(_COUNT) > 1)).drop(_COUNT)


def _inserts_as_they_are(clause: Clause, keys: Iterable[str]) -> bool:
    """Return whether a clause inserts the keys as the source has them."""
    if clause.assignments is None:
        return True
    given = {unquoted(name).lower(): str(value) for name, value in clause.assignments.items()}
    spelled = {key: given.get(key, "").replace("`", "").lower() for key in map(str.lower, keys)}
    return all(value in (key, f"s.{key}") for key, value in spelled.items())


def _allows_widening(table: Table) -> bool:
    return table.exists() and (table.setting(TYPE_WIDENING) or "").lower() == "true"


def _with_new_keys_once(
    table: Table, declaration: MergeDeclaration, rows: DataFrame, is_rebuilt: bool
) -> DataFrame:
    """Refuse several rows that would be inserted for one key, or reduce them to one."""
    keys, why = declaration.keys, "each of these rows would be inserted"
    inserted = _repeated_keys(insertable_rows(rows, declaration), keys)
    if not table.exists() or is_rebuilt or _refuses_repeated(declaration):
        _refuse(table, inserted, why, _ONE_ROW)
        return rows
    _refuse(table, _keys_missing_in(table, inserted, keys), why, _ONE_ROW)
    # The table has these keys. The merge ignores their rows, or deletes the key's row whichever of
    # them matches. If another commit deletes the key and the merge runs again, it must not insert
    # all of them.
    equal_keys = [column("s", key) == column("r", key) for key in keys]
    once = rows.alias("s").join(inserted.alias("r"), equal_keys, "left_anti")
    if _only_inserts(declaration) or inserted.isEmpty():
        return once
    inserts = (
        insertable_rows(rows, declaration).alias("s").join(inserted.alias("r"), equal_keys, "semi")
    )
    return once.unionByName(inserts.dropDuplicates([*keys]))


def _only_inserts(declaration: MergeDeclaration) -> bool:
    return all(clause.kind == "not_matched" for clause in declaration.clauses)


def _refuses_repeated(declaration: MergeDeclaration) -> bool:
    """Return whether MERGE itself refuses several rows for a key that the table has."""
    matched = [clause for clause in declaration.clauses if clause.kind == "matched"]
    return any(clause.action != "delete" or clause.condition is not None for clause in matched)


def _repeated_keys(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the keys that occur several times, with their counts; keys with a null are dropped."""
    named = reduce(lambda one, other: one & other, (column(key).isNotNull() for key in keys))
    count = F.count(F.lit(1)).alias(_COUNT)
    counted = grouped(rows.where(named), [column(key) for key in keys], [count])
    return counted.where(column(_COUNT) > 1)


def _keys_missing_in(table: Table, repeated: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the repeated keys that the table lacks."""
    equal_keys = (column("s", key) == column("t", key) for key in keys)
    return repeated.alias("s").join(table.read().alias("t"), [*equal_keys], "left_anti")


def _with_positions(
    table: Table, declaration: MergeDeclaration, changes: Changes, run: RunPartitions
) -> DataFrame | None:
    """Add the position of its partition in the run to each row; None if nothing gives an order."""
    rows: DataFrame = changes.rows
    positions: dict[str, Any] = {
        key: None if run.positions is None else run.positions(key) for key in run.keys
    }
    if len(positions) > 1 and None not in positions.values():
        order = sorted(set(positions.values()))
        ranks = {key: order.index(position) for key, position in positions.items()}
        ranked = _with_ranks(table, declaration, changes, run, ranks)
        if ranked is not None:
            return ranked
    if declaration.sequence_by is not None:
        return rows.withColumn(_POSITION, F.lit(0))
    return None


def _with_ranks(
    table: Table,
    declaration: MergeDeclaration,
    changes: Changes,
    run: RunPartitions,
    ranks: Mapping[str, int],
) -> DataFrame | None:
    """Add the rank of its partition to each row; None if a row's partition is unknown."""
    if isinstance(changes, ChangesOfPartitions):
        return reduce(
            DataFrame.unionByName,
            (part.withColumn(_POSITION, F.lit(ranks[key])) for key, part in changes.parts.items()),
        )
    rows: DataFrame = changes.rows
    by_expression = _position_by_expression(table, declaration, rows, run, ranks)
    return None if by_expression is None else rows.withColumn(_POSITION, by_expression)


def _position_by_expression(
    table: Table,
    declaration: MergeDeclaration,
    rows: DataFrame,
    run: RunPartitions,
    ranks: Mapping[str, int],
) -> Column | None:
    """Return the position of a row's partition by `partition_expr`; null if it is in none."""
    if declaration.partition_expr is None:
        return None
    keys_of_rank: defaultdict[int, list[str]] = defaultdict(list)
    for key, rank in ranks.items():
        keys_of_rank[rank].append(key)
    try:
        rules = {
            rank: partition_predicate(
                run.definition,
                keys,
                declaration.partition_expr,
                table=table.path_or_name,
                rows=rows,
            )
            for rank, keys in keys_of_rank.items()
        }
    except StatementError:  # it is over the table's columns, which the changes may lack
        return None
    cases = " ".join(f"WHEN {rule} THEN {rank}" for rank, rule in rules.items())
    return parsed_expression(rows.sparkSession, f"CASE {cases} END")


class _Undecided(NamedTuple):
    """Keys whose newest row may be the wrong one, why, and a hint."""

    keys: DataFrame
    why: str
    hint: str


class _NewestRows(NamedTuple):
    """One row for each key, and the keys for which that may be wrong."""

    rows: DataFrame
    undecided: list[_Undecided]


def _newest(table: Table, declaration: MergeDeclaration, positioned: DataFrame) -> _NewestRows:
    """Keep the newest row of each key, or the first one if the clauses only insert.

    Keys are undecided if two of their rows are as new as each other, or if older rows decide what
    the newest leaves.
    """
    keeps_first = _only_inserts(declaration)
    rows = insertable_rows(positioned, declaration) if keeps_first else positioned.alias("s")
    # A row of none of the partitions comes first, and is refused below.
    position = F.coalesce(column(_POSITION), F.lit(-1 if keeps_first else 2**31 - 1))
    by_position = position.asc() if keeps_first else position.desc()
    order = [by_position]
    if declaration.sequence_by is not None:
        sequence = column(unquoted(declaration.sequence_by)).desc_nulls_last()
        order = [by_position, sequence] if keeps_first else [sequence, by_position]
    columns = table_columns(table, declaration, positioned.drop(_POSITION))
    leaves = F.lit(_ITSELF) if keeps_first else left_of_key(rows, declaration, columns)
    by_key = Window.partitionBy(*map(column, declaration.keys))
    ranked = rows.withColumns(
        {
            _RANK: F.rank().over(by_key.orderBy(*order)),
            _COUNT: F.count(F.lit(1)).over(by_key),
            _LEAVES: leaves,
        }
    )
    is_no_key = reduce(
        lambda one, other: one | other, (column(k).isNull() for k in declaration.keys)
    )
    newest = ranked.where((column(_RANK) == 1) | is_no_key)
    tied = _repeated_keys(newest, declaration.keys)
    undecided = newest.where(
        (column(_COUNT) > 1)
        & ~is_no_key
        & (column(_POSITION).isNull() | (column(_LEAVES) == DEPENDS))
    ).select(*map(column, declaration.keys), column(_COUNT))
    problems = [
        _Undecided(tied, "nothing decides which of them is newer", _ONE_ROW_EACH),
        _Undecided(
            undecided,
            "its clauses do more than to replace a row by the newest one, or rows are of none of "
            "the run's partitions",
            _ONE_BY_ONE,
        ),
    ]
    return _NewestRows(newest, problems)


def _stored_columns(table: Table, declaration: MergeDeclaration) -> TableColumns | None:
    """Return the columns of the table, or of the one to be created; None if changes give them."""
    if table.exists() and not is_unwritten(snapshot := table.snapshot()):
        return TableColumns.of(snapshot, [""])
    schema = declaration.schema
    return None if schema is None else TableColumns.declared(schema)


def _refuse(table: Table, repeated: DataFrame, why: str, hint: str) -> None:
    """Raise an error that names the keys, if there are any."""
    found = [row.asDict() for row in repeated.limit(_KEYS_SHOWN).collect()]
    if not found:
        return
    named = [{_SHOWN_NAMES.get(name, name): value for name, value in key.items()} for key in found]
    raise AmbiguousMatchError(
        f"keys come more than once in the changes, and {why}.",
        named,
        table=table.path_or_name,
        hint=hint,
    )
