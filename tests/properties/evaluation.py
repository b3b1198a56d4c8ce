"""What a merge must do, by the text of MERGE's semantics: neither engine's joins are asked.

Spark evaluates each expression of the statement in plain SELECTs: the conditions and values of
every pair of a target row and a source row, and of single rows. Python does the rest: which rows
match, which clause takes a row, whether a match is ambiguous, and which rows, counts and changes
come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from deltaweave.clauses import Clause, Kind
from deltaweave.delta.jvm import is_on
from deltaweave.identifiers import quoted
from tests.merge_cases.case import AMBIGUOUS, MergeCase
from tests.support.oracles import CHANGED_ROWS, Outcome, error_classes, rows_as_text
from tests.support.settings import configured

OF_A_VALUE = ("ARITHMETIC_OVERFLOW", "CAST_INVALID_INPUT", "CAST_OVERFLOW", "NUMERIC_VALUE_OUT_OF")
AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"
INSERT_ONLY_PATH = "spark.databricks.delta.merge.optimizeInsertOnlyMerge.enabled"
# Names of what the SELECTs add; no drawn column has one of these.
T, S, ON, HOLDS, VALUES = "t number", "s number", "on", "holds", "values"


@dataclass(frozen=True)
class Truth:
    """What a merge must do.

    Attributes:
        is_ambiguous: Whether it must fail, because several source rows match a target row.
        rows: The table's rows afterwards, each as text, sorted.
        changes: The rows of the change data feed, as `rows`.
        counts: The metrics of changed rows, and of the source's.
        is_taken: Whether a clause takes one of the rows that several source rows match. If none
            does, a merge that leaves out the files of these rows cannot know of them.
    """

    is_ambiguous: bool
    rows: list[str]
    changes: list[str]
    counts: Mapping[str, int]
    is_taken: bool = True

    def differs_from(self, outcome: Outcome) -> str:
        """In what an outcome differs; an empty string if in nothing."""
        if self.is_ambiguous or outcome.error is not None:
            is_same = self.is_ambiguous and AMBIGUOUS in outcome.error_classes
            return "" if is_same else f"error: {outcome.error_classes}"
        if outcome.rows != self.rows:
            return "rows"
        if outcome.version is not None and outcome.changes not in (None, self.changes):
            return "the change data feed"
        counted = {name: outcome.metrics.get(name, 0) for name in CHANGED_ROWS}
        return "" if counted == self.counts else f"counts: {counted}"


def evaluate(spark: SparkSession, case: MergeCase, target: DataFrame, source: str) -> Truth | None:
    """Return what a drawn merge must do; None if a value of any pair of rows cannot be computed.

    Args:
        spark: The session.
        case: The merge.
        target: The target's rows.
        source: The name of the source's view.
    """
    try:
        with configured(spark, case.conf):
            return _Evaluation(spark, case, target, spark.table(source)).truth()
    except (PySparkException, Py4JJavaError) as error:
        if not any(name.startswith(OF_A_VALUE) for name in error_classes(error)):
            raise
        return None
    except ValueError:  # a year that Python does not have, or fields that this cannot merge
        return None


class _Evaluation:
    def __init__(
        self, spark: SparkSession, case: MergeCase, target: DataFrame, source: DataFrame
    ) -> None:
        self.case = case
        self.target = target.withColumn(T, F.monotonically_increasing_id()).localCheckpoint()
        self.source = source.withColumn(S, F.monotonically_increasing_id())  # kept in memory
        self.of_target, self.of_source = target.schema.fields, source.schema.fields
        types = {field.name.lower(): field.dataType for field in self.of_target}
        self.evolves = case.with_schema_evolution or is_on(spark, AUTO_MERGE, otherwise=False)
        if self.evolves and any(
            isinstance(f.dataType, StructType)
            and types.get(f.name.lower(), f.dataType) != f.dataType
            for f in self.of_source
        ):
            raise ValueError("fields of structs are merged by Delta's rules, which are not here")
        self.columns = self.of_target + self._new_columns()
        self.ignores_repeated = (
            all(clause.kind == "not_matched" for clause in case.clauses)
            and is_on(spark, INSERT_ONLY_PATH, otherwise=True)
        ) or [(c.action, c.condition) for c in self._clauses("matched")] == [("delete", None)]

    def truth(self) -> Truth:
        t, s = self.target.alias("t"), self.source.alias("s")
        on = F.coalesce(F.expr(self.case.on), F.lit(False))
        pairs = self._taken("matched", t.crossJoin(s), [T, S], on)
        matched_t, matched_s = {row[T] for row in pairs}, {row[S] for row in pairs}
        if len(matched_t) < len(pairs) and not self.ignores_repeated:
            times = Counter(row[T] for row in pairs)
            taken = any(times[row[T]] > 1 and row[HOLDS] is not None for row in pairs)
            return Truth(True, [], [], {}, is_taken=taken)
        by_row = {row[T]: row for row in pairs}
        of_target = self._taken("not_matched_by_source", t.where(~F.col(T).isin(matched_t)), [T])
        by_row |= {row[T]: row for row in of_target}
        inserts = self._taken("not_matched", s.where(~F.col(S).isin(matched_s)), [S])
        old = t.select(T, self._struct({f.name: f"t.{quoted(f.name)}" for f in self.of_target}))
        return self._outcome({row[T]: row[VALUES] for row in old.collect()}, by_row, inserts)

    def _outcome(
        self, old: Mapping[int, Row], by_row: Mapping[int, Row], inserts: Sequence[Row]
    ) -> Truth:
        rows, changes, counts = [], [], dict.fromkeys(CHANGED_ROWS, 0)
        for number, before in old.items():
            taken = by_row.get(number)
            clause = None if taken is None else self._of(taken)
            if taken is None or clause is None:
                rows.append(before)
                continue
            did = "Deleted" if clause.action == "delete" else "Updated"
            why = "Matched" if clause.kind == "matched" else "NotMatchedBySource"
            counts[f"numTargetRows{did}"] += 1
            counts[f"numTargetRows{why}{did}"] += 1
            if did == "Deleted":
                changes.append((*before, "delete"))
            else:
                rows.append(taken[VALUES])
                changes.append((*before, "update_preimage"))
                changes.append((*taken[VALUES], "update_postimage"))
        new = [row[VALUES] for row in inserts if row[HOLDS] is not None]
        counts["numTargetRowsInserted"] = len(new)
        changes += [(*row, "insert") for row in new]
        return Truth(False, rows_as_text([*rows, *new]), rows_as_text(changes), counts)

    def _taken(
        self, kind: Kind, rows: DataFrame, numbers: list[str], on: Column | None = None
    ) -> list[Row]:
        """Rows, each with the place of the clause that takes it, or None, and its new values.

        Rows for which ON does not hold are left out here: Spark would make a join of a filter.
        """
        if on is None and not self._clauses(kind):
            return []
        of_row = F.lit(True) if on is None else on
        place, values = F.lit(None).cast("int"), F.lit(None)
        for number, clause in reversed(list(enumerate(self.case.clauses))):
            if clause.kind != kind:
                continue
            holds = F.lit(True) if clause.condition is None else F.expr(str(clause.condition))
            place = F.when(holds, F.lit(number)).otherwise(place)
            if clause.action != "delete":
                values = F.when(holds, self._struct(self._values(clause))).otherwise(values)
        found = rows.select(
            *numbers,
            of_row.alias(ON),
            F.when(of_row, place).alias(HOLDS),
            F.when(of_row, values).alias(VALUES),
        )
        return [row for row in found.collect() if row[ON]]

    def _of(self, taken: Row) -> Clause | None:
        return None if taken[HOLDS] is None else self.case.clauses[taken[HOLDS]]

    def _clauses(self, kind: Kind) -> list[Clause]:
        return [clause for clause in self.case.clauses if clause.kind == kind]

    def _values(self, clause: Clause) -> Mapping[str, str]:
        """The expression that a clause assigns to a column, by the column's name."""
        of_source = {f.name.lower(): f"s.{quoted(f.name)}" for f in self.of_source}
        kept = {c.name: f"CAST(NULL AS {c.dataType.simpleString()})" for c in self.columns}
        kept |= {f.name: f"t.{quoted(f.name)}" for f in self.of_target}  # others are new
        before = {} if clause.kind == "not_matched" else kept
        if clause.action in ("update_all", "insert_all"):
            given = {c.name: of_source.get(c.name.lower()) for c in self.columns}
            return before | {name: value for name, value in given.items() if value is not None}
        values = dict(before)
        for name, value in (clause.assignments or {}).items():
            column, field = self._column(name)
            text = "NULL" if str(value) == "DEFAULT" else str(value)
            values[column.name] = (
                text if field is None else _with_field(column, before[column.name], field, text)
            )
        return values

    def _column(self, name: str) -> tuple[StructField, str | None]:
        """The column that an assignment names, and its field if it names one."""
        for column in self.columns:
            for spelled in (column.name, quoted(column.name)):
                if name.lower() == spelled.lower():
                    return column, None
        if "." not in name:
            raise ValueError(f"no column {name}")
        column, _ = self._column(name.rpartition(".")[0])
        return column, name.rpartition(".")[2]

    def _struct(self, values: Mapping[str, str]) -> Column:
        """Values in the types of the columns, NULL where there are none."""
        fields = [
            self._kept(_stored(values.get(column.name, "NULL"), column.dataType), column)
            for column in self.columns
        ]
        named = [field.alias(f"c{place}") for place, field in enumerate(fields)]
        return F.struct(*named).alias(VALUES)

    def _kept(self, value: str, column: StructField) -> Column:
        """The value that the table returns: as a partition's, an empty text is NULL (protocol)."""
        is_empty = isinstance(column.dataType, (StringType, BinaryType)) and (
            column.name in self.case.partition_by
        )
        empty = f"CAST('' AS {column.dataType.simpleString()})"
        return F.expr(f"nullif({value}, {empty})" if is_empty else value)

    def _new_columns(self) -> list[StructField]:
        """Columns that the target gains."""
        if not self.evolves:
            return []
        known = {field.name.lower() for field in self.of_target}
        clauses = [c for c in self.case.clauses if c.kind != "not_matched_by_source"]
        stars = any(clause.action.endswith("_all") for clause in clauses)
        assigned = {n.lower() for c in clauses for n in c.assignments or {}}
        return [
            field
            for field in self.of_source
            if field.name.lower() not in known
            and (stars or {field.name.lower(), quoted(field.name).lower()} & assigned)
        ]


def _stored(value: str, as_type: DataType) -> str:
    """A value in the type of its column: a struct's fields are those of its names."""
    if not isinstance(as_type, StructType):
        return f"CAST({value} AS {as_type.simpleString()})"
    if value == "NULL":
        return f"CAST(NULL AS {as_type.simpleString()})"
    fields = _fields(as_type, {f.name: f"({value}).{quoted(f.name)}" for f in as_type.fields})
    return f"IF(({value}) IS NULL, NULL, {fields})"


def _with_field(column: StructField, old: str, field: str, value: str) -> str:
    """A struct with one of its fields replaced."""
    assert isinstance(column.dataType, StructType)
    kept = {f.name: f"({old}).{quoted(f.name)}" for f in column.dataType.fields}
    return _fields(column.dataType, kept | {field: value})


def _fields(of: StructType, values: Mapping[str, str]) -> str:
    named: Iterable[str] = (
        f"'{f.name}', CAST({values[f.name]} AS {f.dataType.simpleString()})" for f in of.fields
    )
    return f"named_struct({', '.join(named)})"
