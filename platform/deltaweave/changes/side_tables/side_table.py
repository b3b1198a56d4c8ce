"""Side tables: small tables in a table's directory that remember events for a time.

VACUUM of the table skips them, because the names of their directories begin with "_". So they need
maintenance of their own (`side_tables`).

A side table is written before its table, in a commit of its own: a process may end between the two,
and other runs must find what is noted once they can see that it was applied. It is written right
before the table's commit, when all rows of the merge are written (`Noting`), so a batch that is
refused for its values leaves nothing.

After a RESTORE it holds events that the table's rows lack: a delete would drop columns of a
restored row, or the row. Such events do not count. The events noted in one call are a batch, which
is known by its time: the commit of the table that applies the batch names it (`restores.lineage`).

After a RESTORE or CLONE of the table, the side table is rewritten with the batches that the table
has now (`SideTable.settle`). A later RESTORE may bring others back, from earlier versions of the
side table, as long as their files exist. Only the table's commits since the last check are read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, ClassVar, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

from deltaweave.changes.conversions import (
    by_case,
    changed_fields,
    conflicts,
    converted,
    is_as,
    plain,
    wider,
    with_leaves_of,
)
from deltaweave.changes.events import EVENT_VALUES, PREFIX, EventShape
from deltaweave.changes.options import needed_properties
from deltaweave.changes.restores import (
    LOOKED_AT,
    NOTED_EVERY,
    Lineage,
    LineageLease,
    cloned_by,
    keep,
    last_look,
    noted_by_clone,
    source_of,
    was_restored_or_replaced,
)
from deltaweave.delta.commit import alone_on_local_disk
from deltaweave.delta.files import encryption_properties
from deltaweave.delta.jvm import collected, translated
from deltaweave.delta.log import Commit, FileList, TableSnapshot, bounds
from deltaweave.engine.prune import KEY_INDEX_DIRECTORY
from deltaweave.errors import (
    NOTHING_DONE,
    CommitConflictError,
    DeltaweaveError,
    SourceError,
    StatementError,
)
from deltaweave.identifiers import column, quoted
from deltaweave.table import Table

if TYPE_CHECKING:
    from typing_extensions import Self

NOTED = f"{PREFIX}noted_at"
"""Column of a side table: when the row was written."""

TOMBSTONES, EVENTS = "_deltaweave_tombstones", "_deltaweave_events"
"""The directories of remembered deletes, and of remembered events of histories."""

_RESTORE = "RESTORE the table to the version before, and change its columns by ALTER TABLE."
_DELETE = "Or delete that directory, if no event comes late."
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_OWNER_PROPERTY = "deltaweave.sideTableOf"
"""The table property of a side table with the id of its table."""

logger = logging.getLogger(__name__)

SETTLED = "deltaweave/settled"
"""The application id whose version is that of a side table before it was rewritten."""

TAKEN_OVER = "deltaweave/taken_over"
"""The application id in a side table that holds what the source of a clone remembered."""

_KEPT_LOOKS = 1_000
_KEPT_NOTED = 32  # versions, each of which may hold thousands of batches

_noting = threading.Lock()
_last_noted = 0
# By side table and table: the version up to which the table was checked, and the side table's first
# version for which that holds.
checked_until: dict[tuple[str, str], tuple[int, int]] = {}
noted_batches: dict[tuple[str, str, int, int], set[int]] = {}


def open_side_table(table: Table, directory: str, owner: str | None = None) -> Table:
    """Return the side table of a table; it may not exist yet.

    A new table in the same place has another id. What was remembered for the old table would undo
    its rows, so it gets its own side table. A side table without an owner is from an earlier
    release and belongs to the table.
    """
    owner = owner or table.id()
    found = Table(table.spark, f"{table.location()}/{directory}")
    if found.exists() and found.setting(_OWNER_PROPERTY) not in (None, owner):
        return Table(table.spark, f"{found.path_or_name}_{owner}")
    return found


def fitted(
    rows: DataFrame,
    kept_in: Table,
    schema: StructType | None = None,
    way_out: str | None = _DELETE,
) -> DataFrame:
    """Fit rows to an existing side table, which first gets columns and wider types for them.

    Args:
        rows: The rows.
        kept_in: The side table.
        schema: The types that it gets for them; by default theirs. What does not fit is cast when
            it is written.
        way_out: As in `check_types`; None if that is not asked.

    Raises:
        SourceError: See `check_types`.
        CommitConflictError: Another writer changed the side table meanwhile.
        DeltaweaveError: Delta cannot change its columns so.
    """
    given, read = schema or rows.schema, kept_in.snapshot()
    if way_out is not None:
        check_types(read, given, way_out)
    held = read.schema
    wanted = wider(held, given)
    assert isinstance(wanted, StructType)
    if plain(wanted) != plain(held):
        _add_and_widen_columns(kept_in, held, wanted)
    values = [
        converted(column(f.name), f.dataType, wanted[f.name].dataType).alias(f.name)
        for f in rows.schema
    ]
    are_as = all(is_as(f.dataType, wanted[f.name].dataType) for f in rows.schema)
    return rows if are_as else rows.select(*values)


def check_has_keys(kept_in: TableSnapshot, shape: EventShape) -> None:
    """Fail if a side table holds a key by another name, or of another type, than its table does.

    Raises:
        SourceError: It does.
    """
    check_key_types(kept_in, shape, _DELETE)
    if lost := lost_keys(kept_in.schema, shape):
        raise SourceError(
            f"what it remembers has other names for the key {', '.join(lost)} than the table's "
            "files, which got new ones by an overwrite with overwriteSchema.",
            table=kept_in.data_path,
            operation="applying changes",
            state=NOTHING_DONE,
            hint=f"{_RESTORE} {_DELETE}",
        )


def check_key_types(kept_in: TableSnapshot, shape: EventShape, way_out: str) -> None:
    """Fail as `check_types` does, for the keys of a shape by all names that they may have."""
    table = shape.table
    if table is None:
        return
    fields = by_case(table.fields.values())
    known = [key for key in shape.keys if key.lower() in fields]  # others are refused later
    keys = [(name, key) for key in known for name in shape.stored_names(key)]
    types = [StructField(name, fields[key.lower()].dataType) for name, key in keys]
    check_types(kept_in, StructType(types), way_out)


def check_types(kept_in: TableSnapshot, wanted: StructType, way_out: str) -> None:
    """Fail if a side table holds columns of other types than its table has, which none contains.

    Args:
        kept_in: The side table.
        wanted: The types that its columns have in the table.
        way_out: What to do, besides a RESTORE of the table.

    Raises:
        SourceError: It does.
    """
    if found := conflicts(kept_in.schema, wanted):
        named = ", ".join(
            f"{'.'.join(name for name in now.path if name != EVENT_VALUES)} is "
            f"{held.data_type.simpleString()} there and {now.data_type.simpleString()} in the table"
            for held, now in found
        )
        raise SourceError(
            f"it holds events from when columns of the table had other types: {named}.",
            table=kept_in.data_path,
            operation="applying changes",
            state=NOTHING_DONE,
            hint=f"{_RESTORE} {way_out}",
        )


def lost_keys(stored: StructType, shape: EventShape) -> list[str]:
    """Return the keys that a side table holds only by other names than its table's files have."""
    held = by_case(stored)
    lost = [key for key in shape.keys if held.keys().isdisjoint(shape.stored_names(key))]
    return lost if shape.has_other_keys(stored) else []


def _add_and_widen_columns(kept_in: Table, held: StructType, wanted: StructType) -> None:
    """Add columns and fields to a side table, and change types of those that it has."""
    with_new = with_leaves_of(wanted, held)
    if plain(with_new) != plain(held):
        schema = plain(with_new)
        assert isinstance(schema, StructType)
        nothing = kept_in.spark.createDataFrame([], schema)
        kept_in.write(nothing, "append", with_schema_evolution=True)
    name = f"delta.{quoted(kept_in.location())}"
    changed = changed_fields(held, wanted)
    if not changed:
        return
    properties = ["'delta.enableTypeWidening' = 'true'"]
    if any(isinstance(leaf.data_type, TimestampNTZType) for leaf in changed):
        properties.append("'delta.feature.timestampNtz' = 'supported'")
    statements = [f"SET TBLPROPERTIES ({', '.join(properties)})"]
    statements += [
        f"ALTER COLUMN {'.'.join(map(quoted, leaf.path))} TYPE {leaf.data_type.simpleString()}"
        for leaf in changed
    ]
    operation = "widening columns"
    with (
        translated(kept_in.path_or_name, operation=operation, commits=True),
        alone_on_local_disk(
            kept_in.spark, kept_in.location(), table=kept_in.path_or_name, operation=operation
        ),
    ):
        for each in statements:
            kept_in.spark.sql(f"ALTER TABLE {name} {each}")


def encryption_of(table: Table, kept_in: Table) -> dict[str, str]:
    """Return the properties that encrypt a table that keeps another table's rows or keys.

    Raises:
        StatementError: The table exists without them, or with other values of them, so that it may
            hold in plain text what the other table encrypts.
    """
    if not table.exists():
        return {}
    wanted = encryption_properties(table.snapshot().metadata.properties)
    if wanted and kept_in.exists():
        own = kept_in.snapshot().metadata.properties
        differing = sorted(name for name, value in wanted.items() if own.get(name) != value)
        if differing:
            raise StatementError(
                f"{kept_in.path_or_name} keeps keys and rows of the table, and its properties "
                f"{', '.join(differing)} are not those of the table: what it is to keep may not be "
                "encrypted.",
                table=table.path_or_name,
                operation="applying changes",
                hint=f"Set them to the same for {kept_in.path_or_name}, and rewrite its files.",
            )
    return wanted


def side_tables(table: Table) -> Iterator[Table]:
    """Yield the existing side tables of a table, including its key index."""
    index = Table(table.spark, f"{table.location()}/{KEY_INDEX_DIRECTORY}")
    for each in (index, open_side_table(table, TOMBSTONES), open_side_table(table, EVENTS)):
        if each.exists():
            yield each


def noted_before(keep_for: timedelta, noted: int | None = None) -> str:
    """Return the SQL condition of rows that were written longer ago.

    Args:
        keep_for: How long ago.
        noted: Before which time, in µs since 1970; by default before now.
    """
    return f"{NOTED} < TIMESTAMP '{time_before(keep_for, noted).isoformat()}'"


def may_hold_noted_before(kept_in: TableSnapshot, keep_for: timedelta) -> bool:
    """Return whether a version of a side table may hold rows that were written longer ago.

    The statistics of its files in the log decide; true if there are none.
    """
    listed = kept_in.files_in_checksum()
    if listed is None:
        return True
    files = FileList(kept_in.spark, listed, kept_in.data_path, have_statistics=True)
    (noted,) = bounds(kept_in, files, [((NOTED,), TimestampType())])
    before = (time_before(keep_for) - _UNIX_EPOCH) // timedelta(microseconds=1)
    return any(low is None or low < before for low in noted.lows)


def time_before(time: timedelta, noted: int | None = None) -> datetime:
    """Return when it was so long ago, before now or a time in µs since 1970; 1970 at the least."""
    at = datetime.now(timezone.utc)
    if noted is not None:
        at = _UNIX_EPOCH + timedelta(microseconds=noted)
    return at - min(time, at - _UNIX_EPOCH)


def noted_at_present() -> int:
    """Return the time in µs since 1970; two calls never return the same."""
    global _last_noted
    with _noting:
        _last_noted = max(_last_noted + 1, time.time_ns() // 1000)
        return _last_noted


def noted_at(noted_us: int) -> Column:
    """Build the column of a side table that says when its rows were noted."""
    return F.timestamp_micros(F.lit(noted_us))


@dataclass
class Noting:
    """What a batch leaves in a side table: written once, right before the merge of it commits.

    Attributes:
        noted: When it is noted, in µs since 1970; the commit that applies the batch names it. None
            if the batch leaves nothing.
        read: The version of the side table that the merge is computed from; -1 for none.
        write: Writes it, and returns the committed version; None if nothing was to be written.
    """

    noted: int | None
    read: int
    write: Callable[[], int | None] | None = None
    _written: int | None = field(default=None, init=False)

    def on(self, lease: LineageLease) -> LineageLease:
        """Return a merge's lease that writes it."""
        return lease if self.write is None else replace(lease, before_commit=self._write_once)

    def _write_once(self) -> None:
        if self.write is not None:
            self._written, self.write = self.write(), None

    def seen_by(self, committed: int | None, table: Table, since: int) -> int | None:
        """Return the version of the side table that the merge saw, with what it wrote itself.

        None if it may have missed what another run noted, or rows that another run committed.

        Args:
            committed: The version that the merge committed; None if it changed nothing. Then it may
                have missed rows.
            table: The table.
            since: The version that the merge read, or an earlier one.
        """
        if self._written is None:
            return self.read
        is_next = self._written == self.read + 1
        has_all_rows = committed is not None or table.version() == since
        return self._written if is_next and has_all_rows else None


@dataclass(frozen=True)
class Settled:
    """The rows of a side table that count for its table.

    Attributes:
        read: The version of the side table from which they were read.
        changes: Whether they differ from the rows of that version.
        takes_over: Whether some of them are what the source of a clone remembered.
    """

    rows: DataFrame
    read: int
    changes: bool
    takes_over: bool


@dataclass(frozen=True)
class SideTable:
    """A small table in a table's directory that remembers events for a time.

    Attributes:
        table: The table.
        kept_in: The Delta table that holds the events, created with the first ones.
    """

    DIRECTORY: ClassVar[str]

    table: Table
    kept_in: Table

    @classmethod
    def of(cls, table: Table) -> Self:
        """Open the side table of a table; it may not exist yet."""
        return cls(table, open_side_table(table, cls.DIRECTORY))

    def version(self) -> int:
        """Return its newest version; -1 if it does not exist."""
        return self.kept_in.version() if self.kept_in.exists() else -1

    def create_with(self, schema: StructType) -> None:
        """Create it if it does not exist.

        Raises:
            StatementError: See `encryption_of`.
        """
        properties = {
            _OWNER_PROPERTY: self.table.id(),
            **needed_properties(schema),
            **encryption_of(self.table, self.kept_in),
        }
        self.kept_in.create_if_missing(schema, properties=properties)

    def settle(self) -> TableSnapshot:
        """Make it hold what counts for its table as it is now.

        Returns:
            The version of the table for which it holds that.

        Raises:
            CommitConflictError: Another run changed the side table meanwhile. Repeat it.
        """
        newest = self.table.snapshot()
        side = self.kept_in.snapshot() if self.kept_in.exists() else None
        if side is None or _is_unused(side):
            self._take_over(newest, 0 if side is None else side.version)
            return newest
        found = settled(side, newest, self.DIRECTORY)
        since = side.last_applied(LOOKED_AT) or 0
        looked_at = {LOOKED_AT: newest.version}
        if found is not None and found.changes:
            pairs = {**looked_at, SETTLED: found.read}
            if found.takes_over:
                pairs[TAKEN_OVER] = 1
            self._write(found.rows, "overwrite", pairs, found.read)
            logger.info(
                "%s holds what counts for version %d of %s",
                self.kept_in,
                newest.version,
                self.table,
            )
        elif found is not None or newest.version - since >= NOTED_EVERY:
            try:
                self.kept_in.write(side.read_whole().limit(0), "append", applied=looked_at)
            except CommitConflictError:
                logger.debug("%s: another run records how far it looked", self.kept_in)
        return newest

    def _take_over(self, newest: TableSnapshot, unused: int) -> None:
        """Begin the side table of a clone, unused at a version, with what its source remembers."""
        key = (f"{newest.data_path}/{self.DIRECTORY}", newest.id)
        clone = cloned_by(newest, max(_looked_until(key, -1), last_look(newest)))
        if clone is not None:
            rows = rows_of_clone(newest, clone, self.DIRECTORY)
            if rows is not None:
                self.create_with(rows.schema)
                applied = {LOOKED_AT: newest.version, TAKEN_OVER: 1}
                self._write(rows, "append", applied, unused)
                return
        keep(checked_until, key, (newest.version, -1), _KEPT_LOOKS)

    def _write(
        self,
        rows: DataFrame,
        mode: Literal["append", "overwrite"],
        applied: Mapping[str, int],
        read: int,
    ) -> None:
        """Write rows into a version of the side table.

        Raises:
            CommitConflictError: Another run changed it meanwhile, or it first got columns or wider
                types for these rows. Repeat it.
        """
        rows = fitted(rows, self.kept_in)
        if self.kept_in.version() != read:
            raise CommitConflictError(
                "the side table changed since it was read.",
                table=self.kept_in.path_or_name,
                version=read,
                hint="Repeat it.",
            )
        self.kept_in.write(rows, mode, applied=applied, computed_from=read)


def settled(side: TableSnapshot, newest: TableSnapshot, directory: str) -> Settled | None:
    """Return a side table's rows that count for its table's newest version.

    None if all do, because the table was neither restored nor cloned since the last check.
    """
    known, key = side.last_applied(LOOKED_AT), (side.data_path, newest.id)
    since = max(_looked_until(key, side.version), -1 if known is None else known)
    # If no check was recorded, what came before the side table does not matter.
    if not was_restored_or_replaced(newest, since, side.created_at_ms or 0):
        keep(checked_until, key, (newest.version, side.version), _KEPT_LOOKS)
        return None
    versions = list(_versions(side))
    lineage = Lineage.of(newest, _oldest_ms(versions))
    return _rows_that_count(versions, lineage, newest, directory)


def _rows_that_count(
    versions: Sequence[tuple[TableSnapshot, set[int]]],
    lineage: Lineage,
    table: TableSnapshot,
    directory: str,
) -> Settled:
    """Return the rows of a side table that count for a version of its table."""
    (side, newest), *earlier = versions
    dropped = [noted for noted in newest if not lineage.holds(noted)]
    rows, seen, changes = side.read_whole(), set(newest), bool(dropped)
    if dropped:
        rows = rows.where(~F.unix_micros(NOTED).isin(dropped))
    for before, noted in earlier:
        back = [each for each in noted - seen if lineage.holds(each)]
        seen |= noted
        if back:
            rows = _union(rows, before.read_whole().where(F.unix_micros(NOTED).isin(back)))
            changes = True
    takes_over = False
    if lineage.cloned is not None and noted_by_clone(lineage.cloned) not in seen:
        source_rows = rows_of_clone(table, lineage.cloned, directory)
        if source_rows is not None:
            takes_over = changes = True
            rows = _union(rows, source_rows)
    return Settled(rows, side.version, changes, takes_over)


def _is_unused(side: TableSnapshot) -> bool:
    """Return whether a side table has held no rows yet; it may have got other columns."""
    return side.version < 1 or (side.last_applied(LOOKED_AT) is None and not side.num_files)


def rows_of_clone(newest: TableSnapshot, clone: Commit, directory: str) -> DataFrame | None:
    """Read what a clone's source remembered at the cloned version, if it still exists."""
    name = clone.parameters["source"]
    try:
        source, cloned = source_of(newest, clone)
        # A table that replaced the source has another id, and a side table of its own.
        kept_in = open_side_table(source, directory, cloned.id)
        side = kept_in.snapshot() if kept_in.exists() else None
        if side is None or _is_unused(side):  # also if it is a clone itself
            earlier = cloned_by(cloned, last_look(cloned))
            rows = None if earlier is None else rows_of_clone(cloned, earlier, directory)
        else:
            versions, newest_of_source = list(_versions(side)), source.snapshot()
            lineage = Lineage.of(newest_of_source, _oldest_ms(versions), cloned.version)
            rows = _rows_that_count(versions, lineage, newest_of_source, directory).rows
    except DeltaweaveError as error:
        logger.warning(
            "%s was cloned from %s, whose remembered events cannot be read: %s",
            newest.data_path,
            name,
            error,
        )
        return None
    return None if rows is None else rows.withColumn(NOTED, noted_at(noted_by_clone(clone)))


def _versions(side: TableSnapshot) -> Iterator[tuple[TableSnapshot, set[int]]]:
    """Yield the versions of a side table that hold different batches, newest first, with these."""
    key = (side.data_path, side.id, side.version, side.committed_at_ms)
    at, noted = side, noted_batches.get(key)
    if noted is None:
        noted = _noted_in(side)
        keep(noted_batches, key, noted, _KEPT_NOTED)
    while True:
        yield at, noted
        before = at.last_applied(SETTLED)
        if before is None:
            return
        try:
            at = Table(side.spark, side.data_path).snapshot(before)
            noted = _noted_in(at)
        except DeltaweaveError as error:
            logger.info("%s: its version %d no longer exists: %s", side.data_path, before, error)
            return


def _oldest_ms(versions: Sequence[tuple[TableSnapshot, set[int]]]) -> int:
    """Return when the oldest batch of a side table's versions was noted, in ms since 1970."""
    return min((min(each) for _, each in versions if each), default=0) // 1000


def _noted_in(side: TableSnapshot) -> set[int]:
    """Return the batches that a version of a side table holds."""
    with translated(side.data_path, operation="reading", version=side.version):
        times = side.read_whole().select(F.unix_micros(NOTED).alias("noted"))
        found = collected(times.distinct())
    return {noted for noted in found["noted"].to_pylist() if noted is not None}


def _union(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Return rows of two versions of a side table, with the columns and fields that either has."""
    wanted = wider(rows.schema, others.schema)
    assert isinstance(wanted, StructType)
    return _with_columns(rows, wanted).unionByName(_with_columns(others, wanted))


def _with_columns(rows: DataFrame, wanted: StructType) -> DataFrame:
    """Convert rows to columns; null where they lack one, or a field of one."""
    by_name = by_case(rows.schema)
    values = [
        converted(column(by_name[lower].name), by_name[lower].dataType, field.dataType)
        if lower in by_name
        else F.lit(None).cast(plain(field.dataType))
        for lower, field in by_case(wanted).items()
    ]
    return rows.select(*[each.alias(f.name) for each, f in zip(values, wanted, strict=True)])


def _looked_until(key: tuple[str, str], side: int) -> int:
    """Return the version up to which a table was looked at for a version of its side table."""
    version, since = checked_until.get(key, (-1, side))
    return version if side >= since else -1
