"""Histories of events in which columns change, and what they make in the final shape.

A column is known by a name that never changes (`id`). What a table calls it may change. A column
that is dropped and added again under the same name has another id. The id of a field within a
column begins with the column's and a dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.identifiers import column, quoted

Kind = Literal["current", "histories", "merge on read"]
Speaks = Literal["whole", "no nulls", "named"]
KINDS: tuple[Kind, ...] = ("current", "histories", "merge on read")

Row = tuple[Any, ...]
Columns = dict[str, tuple[str, str]]
"""What a table calls each column and each field of one, and its type, by id."""

# Types with fields: the way down to the struct that has them, through arrays and maps.
SHAPES: dict[str, tuple[str, ...]] = {
    "struct": (),
    "array": ("element",),
    "map": ("value",),
    "array of maps": ("element", "value"),
}
WIDER = {"INT": "BIGINT", "ARRAY<INT>": "ARRAY<BIGINT>"}


def begun_with(shape: str) -> Columns:
    """The columns of a new table, one of which has fields."""
    flat = {"k": ("k", "INT"), "v": ("v", "INT"), "w": ("w", "STRING")}
    return {**flat, "n": ("n", shape), **fields_of_new("n")}


def fields_of_new(id: str) -> Columns:
    """The fields with which a column begins."""
    return {f"{id}.a": ("a", "INT"), f"{id}.b": ("b", "STRING"), f"{id}.c": ("c", "ARRAY<INT>")}


def fields_of(columns: Columns, id: str) -> list[str]:
    """The ids of a column's fields."""
    return [each for each in columns if each.startswith(f"{id}.")]


def whole_columns(columns: Columns) -> list[str]:
    """The ids of columns, without those of fields."""
    return [id for id in columns if "." not in id]


def type_of(columns: Columns, id: str) -> str:
    """A column's type as SQL."""
    of = columns[id][1]
    if of not in SHAPES:
        return of
    fields = [f"{quoted(columns[each][0])}: {columns[each][1]}" for each in fields_of(columns, id)]
    found = f"STRUCT<{', '.join(fields)}>"
    for part in reversed(SHAPES[of]):
        found = f"ARRAY<{found}>" if part == "element" else f"MAP<STRING, {found}>"
    return found


def comparable(value: Any, of: str, fields: Sequence[Any]) -> Any:
    """A column's value with its fields in this order, as tuples; maps with their keys in order.

    Args:
        value: The value, whose structs have their fields by these names or ids; a name or id that
            one lacks is null.
        of: The column's type.
        fields: The names or ids.
    """

    def within(value: Any, way: tuple[str, ...]) -> Any:
        if value is None:
            return None
        if not way:
            parts = value if isinstance(value, Mapping) else value.asDict()
            return tuple(_leaf(parts.get(each)) for each in fields)
        if way[0] == "element":
            return tuple(within(each, way[1:]) for each in value)
        return tuple((key, within(value[key], way[1:])) for key in sorted(value))

    return within(value, SHAPES[of]) if of in SHAPES else value


def _leaf(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _sent(value: Any, way: tuple[str, ...]) -> Any:
    """A value from `comparable` as Spark takes it: maps are dictionaries."""
    if value is None or not way:
        return value
    if way[0] == "element":
        return [_sent(each, way[1:]) for each in value]
    return {key: _sent(each, way[1:]) for key, each in value}


def nested(way: tuple[str, ...], fields: Mapping[str, Any] | None) -> Any:
    """A value of a column with fields: one struct, at the end of the way."""
    if not way:
        return fields
    return [nested(way[1:], fields)] if way[0] == "element" else {"p": nested(way[1:], fields)}


@dataclass(frozen=True)
class Said:
    """An event: what it says of columns, by their ids; a delete if that is None.

    Whole events say null of the columns that are not here. Structs have their fields by ids, too,
    and a field that is not here is null.
    """

    k: int
    seq: int
    values: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Batch:
    """Events that come together, from a source without some of the table's columns or fields."""

    events: Sequence[Said]
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Added:
    id: str
    name: str
    type: str = "INT"


@dataclass(frozen=True)
class Renamed:
    id: str
    name: str


@dataclass(frozen=True)
class Dropped:
    id: str


@dataclass(frozen=True)
class Widened:
    id: str
    type: str


@dataclass(frozen=True)
class Rematerialized:
    strategy: Any = "merge"


Step = Batch | Added | Renamed | Dropped | Widened | Rematerialized


@dataclass
class Changing:
    """A table whose columns change while events are applied to it.

    Attributes:
        spark: The session.
        path: Where it is.
        kind: How it holds the events.
        speaks: Which columns events set: all, those that are not null, or those they name.
        columns: Its columns and their fields.
    """

    spark: SparkSession
    path: str
    kind: Kind
    speaks: Speaks = "whole"
    columns: Columns = field(
        default_factory=lambda: {"k": ("k", "INT"), "v": ("v", "INT"), "w": ("w", "STRING")}
    )

    def take(self, step: Step) -> None:
        """Apply a batch, or change a column."""
        if isinstance(step, Batch):
            self._apply(step)
        elif isinstance(step, Rematerialized):
            if self.kind == "merge on read":
                self.merge_on_read().rematerialize(step.strategy)
        else:
            self._change(step)

    def rows(self) -> set[Row]:
        """Its rows now, with columns in the order of their ids; of histories, all versions."""
        found = Table(self.spark, self.path).read()
        return self._rows(found, ("__START_AT", "__END_AT") if self.kind == "histories" else ())

    def views(self) -> Iterator[tuple[str, set[Row]]]:
        """What each method of reading shows of a merge-on-read table."""
        methods = ["auto", "full_outer_join", "left_join_anti_join"]
        methods += ["double_rank"] if self.speaks == "whole" else []
        for method in methods:
            read: Any = self.merge_on_read().read(method)  # type: ignore[arg-type]
            yield method, self._rows(read)

    def merge_on_read(self) -> MergeOnReadTable:
        return MergeOnReadTable(self.spark, self.path, **self._arguments())

    def _rows(self, found: DataFrame, further: Sequence[str] = ()) -> set[Row]:
        ids = sorted(whole_columns(self.columns))
        names = [self.columns[id][0] for id in ids]
        rows = []
        for row in found.select(*map(column, [*names, *further])).collect():
            values = zip(ids, row, strict=False)
            fields = {id: [self.columns[each][0] for each in self._fields(id)] for id in ids}
            held = [comparable(value, self.columns[id][1], fields[id]) for id, value in values]
            rows.append((*held, *row[len(ids) :]))
        assert len(rows) == len(set(rows))
        return set(rows)

    def final(self, id: str, value: Any) -> Any:
        """What the table shows of a value that an event set."""
        return comparable(value, self.columns[id][1], self._fields(id))

    def _fields(self, id: str) -> list[str]:
        return sorted(fields_of(self.columns, id))

    def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "keys": [self.columns["k"][0]],
            "sequence_by": "seq",
            "apply_as_deletes": "op = 'delete'",
            "except_column_list": ["seq", "op"],
        }
        if self.speaks == "named":
            arguments["present_columns"] = "present"
        if self.speaks == "no nulls":
            arguments["ignore_null_updates"] = True
        return arguments

    def _apply(self, batch: Batch) -> None:
        source = self._source(batch)
        if self.kind == "merge on read":
            self.merge_on_read().append(source)
            return
        if self.kind == "histories":
            deltaweave.apply_changes(
                self.spark, self.path, source, stored_as_scd_type=2, **self._arguments()
            )
            return
        deltaweave.apply_changes(self.spark, self.path, source, **self._arguments())

    def _source(self, batch: Batch) -> DataFrame:
        there = {id: of for id, of in self.columns.items() if id not in batch.lacks}
        columns = whole_columns(there)
        fields = [f"{quoted(there[id][0])} {type_of(there, id)}" for id in columns]
        fields += ["seq INT", "op STRING"]
        fields += ["present ARRAY<STRING>"] if self.speaks == "named" else []
        rows = []
        for event in batch.events:
            values, row = {**(event.values or {}), "k": event.k}, []
            for id in columns:
                value = comparable(values.get(id), there[id][1], fields_of(there, id))
                row.append(_sent(value, SHAPES.get(there[id][1], ())))
            row += [event.seq, "delete" if event.values is None else "upsert"]
            if self.speaks == "named":
                said = event.values or {}
                # An event that sets all columns of its source need not name them.
                names = [there[id][0] for id in said if id in there]
                row.append(None if {*columns} <= {*said, "k"} else names)
            rows.append(tuple(row))
        return self.spark.createDataFrame(rows, ", ".join(fields))

    def _change(self, step: Added | Renamed | Dropped | Widened) -> None:
        before = self.columns
        self.columns = followed(before, step)
        name = path_of(self.columns if isinstance(step, Added) else before, step.id)
        if isinstance(step, Added):
            change = f"ADD COLUMNS ({name} {type_of(self.columns, step.id)})"
        elif isinstance(step, Renamed):
            change = f"RENAME COLUMN {name} TO {quoted(step.name)}"
        elif isinstance(step, Dropped):
            change = f"DROP COLUMN {name}"
        elif step.type.startswith("ARRAY"):
            change = f"ALTER COLUMN {name}.element TYPE BIGINT"
        else:
            change = f"ALTER COLUMN {name} TYPE {step.type}"
        needed = {Added: "", Widened: "'delta.enableTypeWidening' = 'true'"}.get(
            type(step), "'delta.columnMapping.mode' = 'name'"
        )
        table = f"delta.`{self.path}`"
        if needed:
            self.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({needed})")
        self.spark.sql(f"ALTER TABLE {table} {change}")


def expected(steps: Iterable[Step], changing: Changing) -> set[Row]:
    """The rows that the same events make in the final shape, in plain Python."""
    events = [event for step in steps if isinstance(step, Batch) for event in step.events]
    ids = sorted(whole_columns(changing.columns))
    rows: set[Row] = set()
    for k in {event.k for event in events}:
        of_key = sorted(
            {(e.seq, e.values is None): e for e in events if e.k == k}.values(),
            key=lambda e: e.seq,
        )
        current: dict[str, Any] | None = None
        start: int | None = None
        for event in of_key:
            if event.values is None:
                if changing.kind == "histories" and current is not None:
                    rows.add((*(current[id] for id in ids), start, event.seq))
                current = None
                continue
            values = {**(current or dict.fromkeys(ids)), "k": k}
            said = {id: changing.final(id, of) for id, of in event.values.items() if id in ids}
            if changing.speaks == "whole":
                values |= {id: said.get(id) for id in ids if id != "k"}
            else:
                if changing.speaks == "no nulls":
                    said = {id: of for id, of in said.items() if of is not None}
                values |= said
            if changing.kind == "histories" and values != current:
                if current is not None:
                    rows.add((*(current[id] for id in ids), start, event.seq))
                start = event.seq
            current = values
        if current is not None:
            ends = (start, None) if changing.kind == "histories" else ()
            rows.add((*(current[id] for id in ids), *ends))
    return rows


def joined(versions: set[Row]) -> set[Row]:
    """Versions without borders at which nothing changes: a dropped column leaves such borders."""
    found: list[Row] = []
    for row in sorted(versions, key=lambda row: (str(row[:-2]), row[-2])):
        *values, start, end = row
        if found and found[-1][:-2] == tuple(values) and found[-1][-1] == start:
            found[-1] = (*values, found[-1][-2], end)
        else:
            found.append((*values, start, end))
    return set(found)


def path_of(columns: Columns, id: str) -> str:
    """A column or a field as ALTER TABLE names it."""
    whole, dot, _ = id.partition(".")
    way = [quoted(columns[whole][0]), *SHAPES.get(columns[whole][1], ())]
    return ".".join([*way, quoted(columns[id][0])]) if dot else way[0]


def followed(columns: Columns, step: Step) -> Columns:
    """The columns after a step."""
    columns = dict(columns)
    if isinstance(step, Added):
        columns[step.id] = (step.name, step.type)
        columns |= fields_of_new(step.id) if step.type in SHAPES else {}
    elif isinstance(step, Renamed):
        columns[step.id] = (step.name, columns[step.id][1])
    elif isinstance(step, Dropped):
        for id in (step.id, *fields_of(columns, step.id)):
            del columns[id]
    elif isinstance(step, Widened):
        columns[step.id] = (columns[step.id][0], step.type)
    return columns


@st.composite
def histories(draw: st.DrawFn, kind: Kind, speaks: Speaks, shape: str) -> list[Step]:
    """Batches of events, in any order, between which columns change; no two events are a tie.

    Of the columns with which a table begins, one has fields: its type is of this shape.
    """
    columns = begun_with(shape)
    taken: set[tuple[int, int]] = set()
    # The first creates the table, with all of its columns.
    steps: list[Step] = [replace(draw(_batches(columns, taken, kind, speaks)), lacks=())]
    for number in range(draw(st.integers(1, 4))):
        step = draw(_changes(columns, number))
        steps.append(step)
        columns = followed(columns, step)
        if draw(st.booleans()) or number == 0:
            steps.append(draw(_batches(columns, taken, kind, speaks)))
    return steps


@st.composite
def _changes(draw: st.DrawFn, columns: Columns, number: int) -> Step:
    with_fields = [id for id, (_, of) in columns.items() if of in SHAPES]
    within = draw(st.sampled_from([None, *with_fields, *with_fields]))
    if within is None:
        strategy = draw(st.sampled_from(["merge", "overwrite"]))
        possible: list[Step] = [Rematerialized(strategy)]
        of_all, prefix = whole_columns(columns), ""
        names, types = ("v", "w", "x", "y"), ["INT", "STRING", *SHAPES]
    else:
        possible = []
        of_all, prefix = fields_of(columns, within), f"{within}."
        names, types = ("a", "b", "c", "d", "e"), ["INT", "STRING", "ARRAY<INT>"]
    taken = {columns[id][0] for id in of_all}
    values = [id for id in of_all if id != "k"]
    if free := [name for name in names if name not in taken]:
        name = draw(st.sampled_from(free))
        possible.append(Added(f"{prefix}{name}{number}", name, draw(st.sampled_from(types))))
        possible.append(Renamed(draw(st.sampled_from(of_all)), draw(st.sampled_from(free))))
    if len(values) > 1:
        possible.append(Dropped(draw(st.sampled_from(values))))
    if narrow := [id for id in of_all if columns[id][1] in WIDER]:
        id = draw(st.sampled_from(narrow))
        possible.append(Widened(id, WIDER[columns[id][1]]))
    return draw(st.sampled_from(possible))


@st.composite
def _batches(
    draw: st.DrawFn, columns: Columns, taken: set[tuple[int, int]], kind: Kind, speaks: Speaks
) -> Batch:
    values = [id for id in whole_columns(columns) if id != "k"]
    # Whole events leave columns of current rows alone that they lack, whatever the order.
    may_lack = [] if (kind == "current" and speaks == "whole") or len(values) < 2 else values
    for id in values:
        of_column = fields_of(columns, id)
        may_lack = [*may_lack, *(of_column if len(of_column) > 1 else ())]
    lacks = draw(st.sets(st.sampled_from(may_lack), max_size=1)) if may_lack else set()
    keys = st.tuples(st.integers(1, 4), st.integers(1, 12))
    drawn = draw(st.lists(keys, min_size=1, max_size=8, unique=True))
    events = []
    for k, seq in (each for each in drawn if each not in taken):
        taken.add((k, seq))
        if draw(st.integers(0, 4)) == 0:
            events.append(Said(k, seq))
            continue
        said = {}
        for id in values:
            if id in lacks or (speaks == "named" and draw(st.booleans())):
                continue
            fields = {each: columns[each] for each in columns if each not in lacks}
            said[id] = draw(_values(fields, id))
        events.append(Said(k, seq, said))
    return Batch(events, tuple(lacks))


def _values(columns: Columns, id: str) -> st.SearchStrategy[Any]:
    of = columns[id][1]
    numbers = [1, 2, *([2**40] if "BIGINT" in of else [])]
    if of in SHAPES:
        parts = {each: _values(columns, each) for each in fields_of(columns, id)}
        found: st.SearchStrategy[Any] = st.none() | st.fixed_dictionaries(parts)
        for part in reversed(SHAPES[of]):
            of_keys = st.dictionaries(st.sampled_from("pq"), found, max_size=2)
            items = st.lists(found, max_size=2) if part == "element" else of_keys
            found = st.none() | items
        return found
    if of.startswith("ARRAY"):
        return st.sampled_from([None, [], *([number, None] for number in numbers)])
    return st.sampled_from([None, "a", "b"] if of == "STRING" else [None, *numbers])
