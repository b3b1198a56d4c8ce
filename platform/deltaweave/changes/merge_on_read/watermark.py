"""The watermark of a merge-on-read base: the newest batch in it, and the batches that it lacks.

A reader takes a version of the base and all batches after its watermark. Usually all of these
changes are newer than all rows of the base (`are_newer`), because late events have arrived before
the last rematerialization. A change then replaces the row of its key, which need not be read and
compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from deltaweave.changes.conversions import by_case
from deltaweave.changes.events import EVENT_VALUES, OPERATION, SEQUENCE, TRUNCATE, EventShape
from deltaweave.changes.merge_on_read.changeset import (
    BATCH,
    PURGED,
    Batches,
    Changeset,
    began_after,
    first_batch,
    may_hold_of_another_base,
)
from deltaweave.changes.restores import cloned_by, keep, newest_in_line, source_of
from deltaweave.changes.side_tables import ITEM, check_key_types, lost_keys
from deltaweave.delta.jvm import collected, suppress_cleanup_errors
from deltaweave.delta.log import Commit, TableSnapshot, are_bounded, are_without_nulls, bounds
from deltaweave.errors import NOTHING_DONE, DeltaweaveError, SourceError
from deltaweave.identifiers import column, quoted
from deltaweave.table import Table

logger = logging.getLogger(__name__)

MERGED = "deltaweave/merged_batch"
"""Prefix of the application id of the newest batch in a base; earlier releases used it alone.

The base's id follows (`watermark_id`). REPLACE removes all rows and gives a table a new id, but
Delta keeps its application ids.
"""

_OVERWRITE_AGAIN = "Or RESTORE it, rematerialize, delete that directory, and overwrite it again."
_SAMPLED_ROWS = 1_000
# Share of the limit that files may take: Parquet rarely compresses so few rows a hundredfold.
_SURELY_SMALL_SHARE = 0.01
_SURELY_FEW_ROWS = 500_000

merged_in_sources: dict[tuple[str, str, int, int], tuple[_Merged, int]] = {}


def watermark_id(base_id: str) -> str:
    """Return the application id whose version is the newest batch in the base with this id."""
    return f"{MERGED}/{base_id}"


def surely_merged(watermark: int) -> int:
    """Return the newest batch that a base surely has, by its watermark.

    A watermark of -1 - n stands for batch n, and perhaps later ones; of -1, for perhaps some.
    """
    return max(watermark, _with_doubt(watermark))


def _with_doubt(batch: int) -> int:
    return -1 - batch


def restored_watermark(snapshot: TableSnapshot, until: int) -> int | None:
    """Return the batch that a restored base wrongly names as merged, or None."""
    marked = snapshot.last_applied(watermark_id(snapshot.id))
    return marked if marked is not None and marked >= until else None


def merged_batch(base: Table, changes: Table, version: int | None = None) -> int:
    """Return the newest batch in the base at a version; 0 if none, or if the base was replaced."""
    newest = base.snapshot()
    read = newest if version is None else base.snapshot(version)
    if read.id != newest.id:
        return 0
    return _merged_beside(read, changes).batch


def settle_watermark(
    base: Table, changes: Table, shape_of: Callable[[TableSnapshot], EventShape]
) -> None:
    """Make a restored base's watermark name the batch after which readers continue.

    RESTORE leaves the watermark as it is, and log cleanup removes the RESTORE from the log. So a
    commit corrects the watermark while the log has the RESTORE, unless the base cannot be read,
    because it may lack purged batches. Likewise a clone gets that of its source. Where the logs do
    not show it, the commit says so.

    Raises:
        CommitConflictError: Another writer changed the base meanwhile. Repeat it.
    """
    newest = base.snapshot()
    application_id = watermark_id(newest.id)
    held = newest.last_applied(application_id)
    merged = _merged_beside(newest, changes)
    batch = merged.batch
    if merged.restored_at_ms is not None and changes.exists():
        batches = _batches_after_watermark(Changeset(changes, shape_of(newest)), newest)
        if batches.purged > batches.after:
            return
        batch = batches.after
    watermark = _with_doubt(batch) if merged.may_have_more else batch
    if watermark != held and (batch or held is not None):
        applied = {application_id: watermark}
        base.write(
            newest.read_whole().limit(0), "append", applied=applied, computed_from=newest.version
        )


def retire_earlier_watermark(base: Table) -> None:
    """Reset the watermark of earlier releases, which has no base id, once there is one with an id.

    Otherwise it would count again for readers that cannot list ids if the base is replaced.
    """
    with suppress_cleanup_errors("the watermark of earlier releases"):
        if base.last_applied(MERGED):
            base.write(base.read().limit(0), "append", applied={MERGED: 0})


@dataclass(frozen=True)
class _Merged:
    """The batches in a version of a base.

    Attributes:
        batch: The newest batch that is in it, as far as the log shows; 0 for none.
        restored_at_ms: When it was restored, in ms since 1970, if the log lacks its batches.
        is_named: Whether commits of this base say it, and not those of its source.
        may_have_more: Whether later batches may be in it, too, because no log shows it.
        cloned: The commit by which the base was cloned, if that says it.
    """

    batch: int
    restored_at_ms: int | None = None
    is_named: bool = True
    may_have_more: bool = False
    cloned: Commit | None = None


def _merged_in(snapshot: TableSnapshot) -> _Merged:
    """Return the newest batch in a version of the base, by the commits that it consists of.

    RESTORE keeps the watermark, and removes the rows of batches.
    """
    application_id = watermark_id(snapshot.id)
    if snapshot.last_applied(application_id) is not None:
        found = newest_in_line(snapshot, application_id)
        if found.unknown_since is not None:
            return _Merged(0, found.unknown_since.at_ms, may_have_more=True)
        watermark = found.version
        if watermark is None or watermark == _with_doubt(0):
            return _Merged(0, is_named=False, may_have_more=watermark is not None)
        return _Merged(surely_merged(watermark), may_have_more=watermark < 0)
    earlier = snapshot.last_applied(MERGED) or 0
    is_bound = earlier and any(
        each.startswith(watermark_id("")) for each in snapshot.applied_versions()
    )
    return _Merged(earlier) if earlier and not is_bound else _Merged(0, is_named=False)


def _merged_beside(base: TableSnapshot, changes: Table) -> _Merged:
    """Return the newest batch in a version of a base with this changeset, also if it is a clone."""
    merged = _merged_in(base)
    if merged.is_named:
        return merged
    return _merged_in_source(base, changes.snapshot() if changes.exists() else None, merged)


def _batches_after_watermark(changeset: Changeset, base: TableSnapshot) -> Batches:
    """Return the batches that a version of a base lacks.

    Batches are purged once it is known that the base has them. So if the log of the base no
    longer shows what a RESTORE left in it, those that were purged since then are in it.
    """
    merged = _merged_in(base)
    batches = changeset.after(merged.batch)
    if not merged.is_named:
        merged = _merged_in_source(base, batches.table, merged)
        if merged.batch > batches.after:
            batches = changeset.after(merged.batch)
    elif merged.restored_at_ms is not None and batches.purged > batches.after:
        purged_at_ms = batches.table.applied_at_ms(PURGED)
        if purged_at_ms is not None and purged_at_ms > merged.restored_at_ms:
            batches = changeset.after(batches.purged)
    return replace(batches, may_be_merged=merged.may_have_more, cloned=merged.cloned)


def _merged_in_source(
    base: TableSnapshot, changeset: TableSnapshot | None, own: _Merged
) -> _Merged:
    """Return the newest batch that was in a base's source when it was cloned; 0 for none.

    A clone has none of its source's application ids. The first batch that was appended for this
    base, and later ones, are not of the source, nor is any of a changeset that is younger.

    Args:
        base: A version of the base, whose own commits name no batch.
        changeset: Its changeset, if there is one.
        own: What its own commits say, for a base that is no clone.
    """
    first = None if changeset is None else first_batch(changeset, base.id)
    if first == 1:
        return own
    clone, found = cloned_by(base, -1), own
    if clone is not None:
        try:
            found, cloned_at_ms = _found_in_source(base, clone)
        except DeltaweaveError as error:
            logger.warning("%s is a clone, whose source cannot be read: %s", base.data_path, error)
            found, cloned_at_ms = _Merged(0, may_have_more=True), clone.at_ms
        if changeset is not None and began_after(changeset, cloned_at_ms):
            found = _Merged(0)
    batch = found.batch if first is None else min(found.batch, first - 1)
    may_have_more = found.may_have_more or (
        not batch and changeset is not None and may_hold_of_another_base(changeset, base.id)
    )
    return _Merged(batch, is_named=False, may_have_more=may_have_more, cloned=clone)


def _found_in_source(base: TableSnapshot, clone: Commit) -> tuple[_Merged, int]:
    """Find the batches in the table from which a base was cloned, also by way of other clones.

    Returns:
        The batches, and when that table was cloned, in ms since 1970. Neither changes, so a process
        reads a source once.

    Raises:
        DeltaweaveError: A source cannot be read.
    """
    key = (base.data_path, base.id, clone.version, clone.at_ms)
    if key in merged_in_sources:
        return merged_in_sources[key]
    source = source_of(base, clone).version
    merged = _merged_in(source)
    earlier = None if merged.is_named else cloned_by(source, -1)
    found = (merged, clone.at_ms) if earlier is None else _found_in_source(source, earlier)
    keep(merged_in_sources, key, found)
    return found


@dataclass(frozen=True)
class Moment:
    """Both sides of a merge-on-read table, as a reader sees them at one moment.

    Attributes:
        changeset: The changeset, whose rows are read beside that version.
        batches: All batches after the newest one in that version.
    """

    base: TableSnapshot
    changeset: Changeset
    batches: Batches


def at_one_moment(
    base: Table, changes: Table, shape_of: Callable[[TableSnapshot], EventShape]
) -> Moment:
    """Read a version of the base, its changeset, and all batches after the newest one in it.

    Args:
        base: The base.
        changes: The table of the changeset.
        shape_of: Returns how the changeset's rows are read beside a version of the base.

    Raises:
        SourceError: Some of these batches were purged, or their columns are not found.
    """
    while True:
        # The base is read first, so that no batch is missed: one that is merged between the two
        # reads counts as pending.
        snapshot = base.snapshot()
        changeset = Changeset(changes, shape_of(snapshot))
        batches = _batches_after_watermark(changeset, snapshot)
        if batches.purged <= batches.after:
            _check_have_columns(base, snapshot, changeset, batches)
            return Moment(snapshot, changeset, batches)
        # They were merged and purged between the two reads, or were merged into another base.
        merged = max(merged_batch(base, changes), batches.after)
        if merged < batches.purged:
            raise SourceError(
                f"it holds the batches up to {merged}, and those up to {batches.purged} were "
                f"purged from {changes.path_or_name}.",
                table=base.path_or_name,
                operation="reading",
                version=snapshot.version,
                state=NOTHING_DONE,
                hint="They were merged into another base, or into one that was replaced or "
                "restored since, or the base is a clone of an older version: restore the version "
                "that has them, or a version of the changeset with these batches (of clones, clone "
                "one by VERSION AS OF), or drop both tables and append all events again.",
            )


def _check_have_columns(
    base: Table, snapshot: TableSnapshot, changeset: Changeset, batches: Batches
) -> None:
    """Raise a SourceError if events lack their keys, or have values that no column would take.

    A batch holds its columns by the names that the base's files had for them. With column mapping,
    a base that is dropped and created again, or overwritten with overwriteSchema, has other names.
    Without it, the overwrite gives other types.
    """
    if batches.newest > batches.after:
        check_key_types(batches.table, changeset.shape, _OVERWRITE_AGAIN)
    may_be_of_another = batches.may_be_of_another_base(snapshot.id)
    if not (may_be_of_another or _may_lack_keys(changeset, batches)):
        return
    lacks_key = F.lit(False)
    for key in changeset.shape.keys:
        lacks_key = lacks_key | column(key).isNull()
    lost: list[tuple[str, ...]] = []
    if batches.rows.where((F.col(OPERATION) != TRUNCATE) & lacks_key).take(1):
        lost = [(key,) for key in changeset.shape.keys]
    elif may_be_of_another and batches.are_of_another_base(snapshot.id):
        lost = changeset.untaken_values(batches)
    if lost:
        named = ", ".join(".".join(path) for path in lost)
        raise SourceError(
            f"batches that are pending in {changeset.table.path_or_name} were appended for a table "
            f"that was in its place before, whose files had other names for the column {named}.",
            table=base.path_or_name,
            operation="reading",
            version=snapshot.version,
            state="Nothing was read or written, and the batches are as they were.",
            hint=_ways_on(changeset, batches, snapshot.id, lost),
        )


def _may_lack_keys(changeset: Changeset, batches: Batches) -> bool:
    """Return whether some may be older than a key column that was added to the changeset."""
    held, shape = by_case(batches.table.schema), changeset.shape
    if not shape.has_other_keys(batches.table.schema):
        return False
    names = [[held[n].name for n in shape.stored_names(key) if n in held] for key in shape.keys]
    return not all(
        len(held_names) == 1 and are_without_nulls(batches.table, batches.files, held_names)
        for held_names in names
    )


def check_keys_are_as_pending(
    base: Table, changes: Table, shape_of: Callable[[TableSnapshot], EventShape], keys: EventShape
) -> None:
    """Fail if pending batches of this base hold keys by other names, or of other types, than now.

    Args:
        base: The base.
        changes: The table of the changeset.
        shape_of: As in `at_one_moment`.
        keys: How keys are stored now.

    Raises:
        SourceError: They do. A further batch would have the other names, and after a RESTORE of the
            base to before, its events would have no keys.
    """
    if not changes.exists():
        return
    stored = changes.snapshot()
    check_key_types(stored, keys, _OVERWRITE_AGAIN)
    if not lost_keys(stored.schema, keys):
        return
    snapshot = base.snapshot()
    changeset = Changeset(changes, shape_of(snapshot))
    batches = _batches_after_watermark(changeset, snapshot)
    is_of_this = first_batch(batches.table, snapshot.id) is not None
    if is_of_this or not batches.are_of_another_base(snapshot.id):
        _check_have_columns(base, snapshot, changeset, batches)


def _ways_on(
    changeset: Changeset, batches: Batches, base_id: str, lost: Sequence[tuple[str, ...]]
) -> str:
    """Write a hint on what to do with batches whose values are lost."""
    name = f"delta.{quoted(changeset.table.location())}"
    first, last = batches.after + 1, batches.last_of_another_base(base_id)
    is_of_this = last < first or not batches.are_of_another_base(base_id)
    where = f"{BATCH} BETWEEN {first} AND {batches.newest if is_of_this else last}"
    lack_keys = not {(key,) for key in changeset.shape.keys}.isdisjoint(lost)
    if lack_keys:
        where += _lacks_key(changeset, batches)
        where += f" AND {OPERATION} <> '{TRUNCATE}'" if is_of_this else ""
    hint = (
        f"Delete them (DELETE FROM {name} WHERE {where}) and append their events again, as other "
        "batches: of a stream, with a new checkpoint."
    )
    if is_of_this:
        hint = (
            "RESTORE the table to the version before it was overwritten with overwriteSchema, and "
            f"change its columns by ALTER TABLE. If its columns are to stay as they are: {hint}"
        )
    if not lack_keys and not any(ITEM in path for path in lost):
        paths = [".".join(map(quoted, (EVENT_VALUES, *path))) for path in lost]
        left_out = "; ".join(
            f"UPDATE {name} SET {path} = NULL WHERE {path} IS NOT NULL" for path in paths
        )
        hint += f" Or leave these values out, if the table is not to have them: {left_out}."
    return hint


def _lacks_key(changeset: Changeset, batches: Batches) -> str:
    """Return the further SQL condition of stored events that lack their keys."""
    held, shape = by_case(batches.table.schema), changeset.shape
    lacks = []
    for key in shape.keys:
        names = [held[name].name for name in sorted(shape.stored_names(key)) if name in held]
        if not names:
            return ""  # all stored events lack it
        lacks.append(" AND ".join(f"{quoted(name)} IS NULL" for name in names))
    return f" AND {lacks[0]}" if len(lacks) == 1 else f" AND ({' OR '.join(lacks)})"


def fit_into_a_broadcast(batches: Batches, limit_bytes: int) -> bool:
    """Return whether the changes can be broadcast, by their number and measured size."""
    files = batches.files
    count = files.num_records
    is_small = files.size_in_bytes <= _SURELY_SMALL_SHARE * limit_bytes
    if is_small and count is not None and count <= _SURELY_FEW_ROWS:
        return True
    sample = collected(batches.rows.limit(_SAMPLED_ROWS))
    bytes_per_row = sample.nbytes / max(sample.num_rows, 1)
    return bool(bytes_per_row * (batches.rows.count() if count is None else count) <= limit_bytes)


def are_newer(changes: Batches, base: TableSnapshot, sequence: StructType) -> bool:
    """Return whether every change's sequence is above all of the base.

    Compared are the first part of a sequence, and further parts while all before are equal on both
    sides, such as the epoch of a position. Also false if statistics do not bound them: they may be
    beyond the first 32 columns, or of a type without bounds.
    """
    files = base.file_list()
    for path, data_type in _sequence_parts([SEQUENCE], sequence):
        # NaN is above all other numbers and is not in bounds.
        if not are_bounded(data_type) or isinstance(data_type, FloatType | DoubleType):
            return False
        if not len(changes.files) or not len(files):
            return True
        [held] = bounds(base, files, [(path, data_type)])
        [pending] = bounds(changes.table, changes.files, [(path, data_type)])
        highs, lows = (
            _known_bounds(held.highs, held.are_null),
            _known_bounds(pending.lows, pending.are_null),
        )
        if highs is None or lows is None:
            return False
        if not highs or not lows or bool(max(highs) < min(lows)):
            return True
        if {*highs, *lows, *held.lows, *pending.highs} != {highs[0]}:
            return False
    return False


def _sequence_parts(path: list[str], data_type: DataType) -> Iterator[tuple[list[str], DataType]]:
    """Yield the parts of a sequence, in their order."""
    if not isinstance(data_type, StructType):
        yield path, data_type
        return
    for field in data_type:
        yield from _sequence_parts([*path, field.name], field.dataType)


def _known_bounds(ends: list[Any], are_null: list[bool]) -> list[Any] | None:
    """Return the bounds of the files that hold values; None if one of them has no bounds."""
    ends = [end for end, is_null in zip(ends, are_null, strict=True) if not is_null]
    return None if None in ends else ends
