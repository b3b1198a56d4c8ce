"""Histories of events in which columns change, and what they make in the final shape.

A column is known by a name that never changes (`id`). What a table calls it may change. A column
that is dropped and added again under the same name has another id.
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


@dataclass(frozen=True)
class Said:
    """An event: what it says of columns, by their ids; a delete if that is None.

    Whole events say null of the columns that are not here.
    """

    k: int
    seq: int
    values: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Batch:
    """Events that come together, from a source without some of the table's columns."""

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
        columns: What it calls each column, and the column's type, by id.
    """

    spark: SparkSession
    path: str
    kind: Kind
    speaks: Speaks = "whole"
    columns: dict[str, tuple[str, str]] = field(
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
        names = [self.columns[id][0] for id in sorted(self.columns)]
        rows = [tuple(row) for row in found.select(*map(column, [*names, *further])).collect()]
        assert len(rows) == len(set(rows))
        return set(rows)

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
        fields = [f"{quoted(name)} {of}" for name, of in there.values()]
        fields += ["seq INT", "op STRING"]
        fields += ["present ARRAY<STRING>"] if self.speaks == "named" else []
        rows = []
        for event in batch.events:
            values = {**(event.values or {}), "k": event.k}
            row = [values.get(id) for id in there]
            row += [event.seq, "delete" if event.values is None else "upsert"]
            if self.speaks == "named":
                said = event.values or {}
                # An event that sets all columns of its source need not name them.
                names = [there[id][0] for id in said if id in there]
                row.append(None if set(there) <= {*said, "k"} else names)
            rows.append(tuple(row))
        return self.spark.createDataFrame(rows, ", ".join(fields))

    def _change(self, step: Added | Renamed | Dropped | Widened) -> None:
        name = quoted(step.name) if isinstance(step, Added) else quoted(self.columns[step.id][0])
        if isinstance(step, Added):
            self.columns[step.id] = (step.name, step.type)
            change = f"ADD COLUMNS ({name} {step.type})"
        elif isinstance(step, Renamed):
            self.columns[step.id] = (step.name, self.columns[step.id][1])
            change = f"RENAME COLUMN {name} TO {quoted(step.name)}"
        elif isinstance(step, Dropped):
            del self.columns[step.id]
            change = f"DROP COLUMN {name}"
        else:
            self.columns[step.id] = (self.columns[step.id][0], step.type)
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
    ids = sorted(changing.columns)
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
            if changing.speaks == "whole":
                values |= {id: event.values.get(id) for id in ids if id != "k"}
            else:
                said = {id: of for id, of in event.values.items() if id in ids}
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


@st.composite
def histories(draw: st.DrawFn, kind: Kind, speaks: Speaks) -> list[Step]:
    """Batches of events, in any order, between which columns change; no two events are a tie."""
    columns = {"k": ("k", "INT"), "v": ("v", "INT"), "w": ("w", "STRING")}
    taken: set[tuple[int, int]] = set()
    # The first creates the table, with all of its columns.
    steps: list[Step] = [replace(draw(_batches(columns, taken, kind, speaks)), lacks=())]
    for number in range(draw(st.integers(1, 4))):
        step = draw(_changes(columns, number))
        steps.append(step)
        _follow(columns, step)
        if draw(st.booleans()) or number == 0:
            steps.append(draw(_batches(columns, taken, kind, speaks)))
    return steps


def _follow(columns: dict[str, tuple[str, str]], step: Step) -> None:
    if isinstance(step, Added):
        columns[step.id] = (step.name, step.type)
    elif isinstance(step, Renamed):
        columns[step.id] = (step.name, columns[step.id][1])
    elif isinstance(step, Dropped):
        del columns[step.id]
    elif isinstance(step, Widened):
        columns[step.id] = (columns[step.id][0], step.type)


@st.composite
def _changes(draw: st.DrawFn, columns: dict[str, tuple[str, str]], number: int) -> Step:
    names = {name for name, _ in columns.values()}
    free = [name for name in ("v", "w", "x", "y") if name not in names]
    narrow = [id for id, (_, of) in columns.items() if of == "INT"]
    values = [id for id in columns if id != "k"]
    possible: list[Step] = [Rematerialized(draw(st.sampled_from(["merge", "overwrite"])))]
    if free:
        name = draw(st.sampled_from(free))
        possible.append(Added(f"{name}{number}", name, draw(st.sampled_from(["INT", "STRING"]))))
        possible.append(Renamed(draw(st.sampled_from(list(columns))), draw(st.sampled_from(free))))
    if len(values) > 1:
        possible.append(Dropped(draw(st.sampled_from(values))))
    if narrow:
        possible.append(Widened(draw(st.sampled_from(narrow)), "BIGINT"))
    return draw(st.sampled_from(possible))


@st.composite
def _batches(
    draw: st.DrawFn,
    columns: dict[str, tuple[str, str]],
    taken: set[tuple[int, int]],
    kind: Kind,
    speaks: Speaks,
) -> Batch:
    values = [id for id in columns if id != "k"]
    # Whole events leave columns of current rows alone that they lack, whatever the order.
    may_lack = [] if kind == "current" and speaks == "whole" else values
    lacks = draw(st.sets(st.sampled_from(may_lack), max_size=1)) if len(may_lack) > 1 else set()
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
            of = columns[id][1]
            numbers = [None, 1, 2, *([2**40] if of == "BIGINT" else [])]
            said[id] = draw(st.sampled_from([None, "a", "b"] if of == "STRING" else numbers))
        events.append(Said(k, seq, said))
    return Batch(events, tuple(lacks))
