"""The source of a merge: pruned to the columns used, materialized where needed, and counted.

Several phases read the source. It is materialized unless it is certain to give the same rows each
time: files may change, queries may be random, and other writers may commit to a table. Delta's
setting `spark.databricks.delta.merge.materializeSource` decides, as it does for built-in MERGE.
Spark counts the rows' bytes, too: a text that repeats is stored once, so files say little of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from deltaweave._validation import counted
from deltaweave.delta.jvm import (
    collected,
    delta_message,
    raise_hidden_interrupts,
    translated,
    unique_number,
)
from deltaweave.delta.log import filtering_exactly
from deltaweave.delta.scan import (
    UNSTABLE_OPERATORS,
    ListedRows,
    SourceFiles,
    estimated_bytes,
    is_cached,
    limit_of_partitions,
    materialized,
    reason_to_materialize,
    with_files_chosen,
    with_listed_files,
)
from deltaweave.delta.statement import ResolvedMerge, may_lose_days
from deltaweave.engine import limits
from deltaweave.engine.attempts import reason_of, was_cancelled
from deltaweave.engine.clauses import SOURCE_ROW_ID, SOURCE_ROW_PRESENT, WIDTH, insertable
from deltaweave.engine.tasks import TooBigError
from deltaweave.errors import SourceError
from deltaweave.identifiers import back_quoted, is_replaced

if TYPE_CHECKING:
    import pyarrow


logger = logging.getLogger(__name__)


_SAME_ROWS = "NOT_MATERIALIZED_AUTO"
_LOST_DAYS = "FILTERED_BY_DAYS_THAT_PARQUET_LACKS"  # no reason of Delta's
_SETTING = "spark.databricks.delta.merge.materializeSource"
# An attempt that lost blocks of the source is followed by one that keeps more copies of them.
_STORAGE_LEVELS = (
    ("rddStorageLevel", "DISK_ONLY"),
    ("rddStorageLevelFirstRetry", "DISK_ONLY_2"),
    ("rddStorageLevelRetry", "DISK_ONLY_3"),
)

_BYTES_OF_NUMBER = 8
_BYTES_OF_OTHERS = 16
_OF_FIXED_WIDTH = (
    NumericType,
    BooleanType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
    YearMonthIntervalType,
    NullType,
)
# Columns that repeat the width's expression. A column of its own takes six calls of the JVM more.
_MAX_REPEATED_WIDTHS = 16


@dataclass
class KnownCounts:
    """Counts of source rows that other queries found, so that no job has to count again.

    Attributes:
        rows: How many rows there are; None until that is known.
        insertable: How many of them an insert clause takes if they match nothing; None until that
            is known.
        decoded_bytes: How many bytes they have in memory; None until that is known.
        cannot_be_measured: Whether a query that counts these bytes failed.
    """

    rows: int | None = None
    insertable: int | None = None
    decoded_bytes: int | None = None
    cannot_be_measured: bool = False


@dataclass(frozen=True)
class PreparedSource:
    """The source as every phase reads it.

    Attributes:
        rows: The columns that the merge uses, and `SOURCE_ROW_ID` (bigint) if materialized.
        table: The target's name in messages.
        is_materialized: Whether the rows were computed once and are stored on the executors.
        reason: Why the source was materialized or not, in Delta's words.
        gives_same_rows: Whether evaluating them again is certain to give the same rows.
        insertable: Whether an insert clause takes a row if it matches nothing; None if that is not
            asked for (see `num_unaffected`).
        files: What it is read from, if it is all rows of a table whose files are known.
        known: Counts that are known.
    """

    rows: DataFrame
    table: str
    is_materialized: bool
    reason: str
    gives_same_rows: bool
    insertable: Column | None = None
    files: SourceFiles | None = None
    known: KnownCounts = field(default_factory=KnownCounts)

    @property
    def num_rows(self) -> int:
        """How many rows there are; one job counts them unless that is known."""
        if self.known.rows is None:
            with translated(self.table, otherwise=SourceError):
                self.known.rows = self.rows.count()
        return self.known.rows

    @property
    def is_counted(self) -> bool:
        """Whether the number of rows is known."""
        return self.known.rows is not None

    @property
    def num_insertable(self) -> int:
        """How many rows an insert clause takes if they match nothing; one job unless known."""
        if self.known.insertable is None:
            assert self.insertable is not None
            with translated(self.table, otherwise=SourceError):
                row = self.rows.agg(F.count_if(self.insertable)).first()
            assert row is not None
            self.known.insertable = int(row[0])
        return self.known.insertable

    @property
    def decoded_bytes(self) -> int | None:
        """How many bytes the rows have in memory, or None if that is not known."""
        if self.known.decoded_bytes is None and self.is_counted:
            each = fixed_width(self.rows.schema)
            if each is not None:
                self.known.decoded_bytes = self.num_rows * each
        return self.known.decoded_bytes

    @property
    def width_to_sum(self) -> str | None:
        """SQL whose sum is `decoded_bytes`; None if that is known, cannot be counted, or is large.

        It computes all texts of all rows. A value may fail in a row that matches nothing, so its
        failure is not one of the merge.
        """
        is_asked = self.decoded_bytes is None and not self.known.cannot_be_measured
        return self._width_unless_large if is_asked else None

    @cached_property
    def _width_unless_large(self) -> str | None:
        if not can_be_measured(self.rows.schema):
            return None
        # Spark's estimate finds large sources, which need not be read to be measured.
        is_large = estimated_bytes(self.rows) > limits.MAX_BROADCAST_SOURCE_BYTES
        return None if is_large else width_of(self.rows.schema)

    @property
    def fits_broadcast(self) -> bool:
        """Whether the rows are certain to fit a broadcast; one job measures them if needed."""
        if self.width_to_sum is not None:
            summed = F.expr(f"sum({self.width_to_sum})")
            try:
                with translated(self.table, otherwise=SourceError), raise_hidden_interrupts():
                    row = self.rows.agg(summed).first()
                assert row is not None
                self.known.decoded_bytes = row[0] or 0
            except SourceError as error:
                self.not_measured(error)
        size = self.decoded_bytes
        return size is not None and size <= limits.MAX_BROADCAST_SOURCE_BYTES

    def not_measured(self, error: SourceError) -> None:
        """Note that a query with `width_to_sum` failed; raise the error if it was cancelled."""
        if was_cancelled(error):
            raise error
        logger.info("%s: the source is not measured: %s", self.table, reason_of(error))
        self.known.cannot_be_measured = True

    def for_join(self) -> DataFrame:
        """Return the rows with `SOURCE_ROW_PRESENT`, hinted by their decoded bytes.

        Spark's estimates follow compressed sizes: they would broadcast gigabytes of repeated text.
        """
        rows = self.rows.withColumn(SOURCE_ROW_PRESENT, F.lit(True))
        if not self.fits_broadcast:
            return rows.hint("merge")
        return F.broadcast(rows) if self.is_materialized else rows


@contextmanager
def prepared_source(merge: ResolvedMerge, attempt: int) -> Iterator[PreparedSource]:
    """Prepare the source for a block; its materialized rows are dropped when the block ends.

    `attempt` is 1, or more after the materialized rows of an earlier attempt were lost.

    Raises:
        SourceError: The source's rows could not be read or computed.
    """
    materialize, reason = materialization_of(merge)
    used, files = merge.used_source(), None
    if reason == _SAME_ROWS:
        used, files = with_files_chosen(used, merge.target_log)
    elif reason == UNSTABLE_OPERATORS and (listed := _rows_of_view(merge, used)) is not None:
        used, files = listed
        materialize, reason = False, _SAME_ROWS
    used = filtering_exactly(used)
    # The source's scan may skip rows by dates that Parquet's filters lack.
    if not materialize and may_lose_days(used.schema) and merge.may_filter_by_lost_days:
        materialize, reason = True, _LOST_DAYS
    if not materialize:
        same = reason == _SAME_ROWS
        source = PreparedSource(used, merge.table, False, reason, same, insertable(merge), files)
        if files is not None:
            source.known.rows = files.files.num_records
        # The source may give other rows later: they are counted before they are merged.
        elif not same:
            source.known.rows = source.num_rows
        yield source
        return
    setting, default = _STORAGE_LEVELS[min(attempt, len(_STORAGE_LEVELS)) - 1]
    level = merge.spark.conf.get(f"{_SETTING}.{setting}", default) or default
    numbered = used.withColumn(SOURCE_ROW_ID, unique_number(merge.spark))
    each = fixed_width(used.schema)
    is_summed = each is None and can_be_measured(used.schema)
    summed = width_of(used.schema) if is_summed else None
    with ExitStack() as stack:
        with translated(merge.table, otherwise=SourceError):
            kept = stack.enter_context(materialized(numbered, level, summed))
        logger.debug(
            "materialized the source (%s, attempt %d, %s): %d rows",
            reason,
            attempt,
            level,
            kept.num_rows,
        )
        yield PreparedSource(
            kept.rows,
            merge.table,
            True,
            reason,
            gives_same_rows=True,
            insertable=insertable(merge),
            known=KnownCounts(
                rows=kept.num_rows,
                decoded_bytes=kept.total if each is None else kept.num_rows * each,
            ),
        )


def _rows_of_view(merge: ResolvedMerge, used: DataFrame) -> ListedRows | None:
    """Read a view's rows from its files; None if later reads might see others."""
    # A cached source may be cached again meanwhile.
    if reason_to_materialize(merge, through_views=True) is not None or is_cached(merge):
        return None
    return with_listed_files(used, merge.target_log)


def check_same_source(merge: ResolvedMerge, source: PreparedSource) -> None:
    """Fail if the number of source rows changed during the merge, if the session asks for that.

    A materialized source cannot change. For another source, Delta's MERGE counts the rows twice
    anyway. Here the check is one more job, so it runs only if
    `spark.databricks.delta.merge.failIfSourceChanged` is true.

    Raises:
        SourceError: With Delta's wording.
    """
    asked = merge.spark.conf.get("spark.databricks.delta.merge.failIfSourceChanged", "false")
    if asked != "true" or source.is_materialized or merge.takes_insert_only_path:
        return
    with translated(merge.table, otherwise=SourceError):
        recounted = source.rows.count()
    if recounted != source.num_rows:
        message = delta_message(
            merge.spark, "sourceNotDeterministicInMergeException", with_session=True
        )
        raise SourceError(
            f"{message.text} It had {counted(source.num_rows, 'row')}, then {recounted:,}.",
            table=merge.table,
            hint="Set spark.databricks.delta.merge.materializeSource to auto, or write the source "
            "to a table first.",
        )


class Materialization(NamedTuple):
    """The decision whether to materialize the source, and its reason in Delta's words."""

    is_wanted: bool
    reason: str


def materialization_of(merge: ResolvedMerge) -> Materialization:
    """Decide whether to materialize the source, and why: by the setting, then by the plan."""
    mode = (merge.spark.conf.get(_SETTING, "auto") or "auto").lower()
    if mode == "all":
        return Materialization(True, "MATERIALIZE_ALL")
    if mode == "none":
        return Materialization(False, "NOT_MATERIALIZED_NONE")
    if mode != "auto":
        return Materialization(True, "INVALID_CONFIG")
    # Also for an insert-only merge, unlike Delta: it counts the rows, prunes by them and inserts
    # them.
    reason = reason_to_materialize(merge)
    return Materialization(reason is not None, _SAME_ROWS if reason is None else reason)


def collected_within(query: DataFrame, max_rows: int, max_bytes: int) -> pyarrow.Table:
    """Collect a query's rows, unless they have more bytes than the driver may hold.

    Tasks leave out the values of rows that are wider than their share of what tasks may send
    (`limits.MAX_BYTES_SENT`), and send their widths. If the rows turn out to fit nevertheless, a
    second job collects them. Arrow sends as many bytes for a null number as for another: of rows
    with many numbers, a task sends no more than are known to be too big.

    A task sends `max_rows` at most, as far as is known. Fail with TooBigError if the rows have more
    than `max_bytes`, or if it is not known how many they have.

    Raises:
        TooBigError: The rows have more bytes, or their size is unknown.
    """
    schema = query.schema
    narrowest = _least_width(schema)
    most = max_bytes // max(1, narrowest)
    may_be_cut = max_rows > most and max_rows * narrowest > limits.MAX_BYTES_SENT
    if may_be_cut:
        query, max_rows = limit_of_partitions(query, most + 1), most + 1
    table = _collect_measured(query, schema, limits.MAX_BYTES_SENT // max(1, max_rows), max_bytes)
    if may_be_cut and table.num_rows > most:
        raise TooBigError(f"the rows have more than {max_bytes:,} bytes")
    return table


def _collect_measured(
    query: DataFrame, schema: StructType, share: int, max_bytes: int
) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if fixed_width(schema) is not None:
        return collected(query)
    if not can_be_measured(schema):
        raise TooBigError("SQL cannot count the bytes of the rows")
    width = width_of(schema)
    varies = [fixed_width(StructType([field])) is None for field in schema.fields]
    measured, of_row = query, f"({width})"
    if sum(varies) > _MAX_REPEATED_WIDTHS:
        measured, of_row = query.selectExpr("*", f"{width} AS {WIDTH}"), WIDTH
    columns = [
        f"CASE WHEN {of_row} <= {share} THEN {name} END AS {name}" if may_be_wide else name
        for name, may_be_wide in zip(map(back_quoted, schema.names), varies, strict=True)
    ]
    try:
        table = collected(measured.selectExpr(*columns, f"{of_row} AS {WIDTH}"))
    except pa.ArrowInvalid as error:  # Arrow takes no null for a struct whose fields are none
        raise TooBigError(f"rows may be too wide: {error}") from error
    widths = table[WIDTH]
    if (pc.sum(widths).as_py() or 0) > max_bytes:
        raise TooBigError(f"the rows have more than {max_bytes:,} bytes")
    if (pc.max(widths).as_py() or 0) > share:
        return collected(query)
    return table.drop_columns([WIDTH])


def width_of(schema: StructType) -> str:
    """Return SQL that counts the bytes of a row."""
    of_fields = [_width(back_quoted(field.name), field.dataType, 0) for field in schema.fields]
    fixed = sum(each.fixed for each in of_fields)
    return " + ".join([f"{fixed}L", *(each.varying for each in of_fields if each.varying)])


def _least_width(schema: StructType) -> int:
    """Return the bytes that every row has at least."""
    return sum(_width("", field.dataType, 0).fixed for field in schema.fields)


def fixed_width(schema: StructType) -> int | None:
    """Return the bytes that every row has, or None if rows differ."""
    of_fields = [_width(back_quoted(field.name), field.dataType, 0) for field in schema.fields]
    return (
        None if any(each.varying for each in of_fields) else sum(each.fixed for each in of_fields)
    )


def can_be_measured(kind: DataType) -> bool:
    """Return whether SQL can count the bytes of a value.

    It cannot look into types of users and types that are not known here, nor name fields of a
    struct that share a name or hold `${…}`.
    """
    if isinstance(kind, StructType):
        names = {name.casefold() for name in kind.names if not is_replaced(name)}
        return len(names) == len(kind) and all(can_be_measured(f.dataType) for f in kind)
    if isinstance(kind, ArrayType):
        return can_be_measured(kind.elementType)
    if isinstance(kind, MapType):
        return can_be_measured(kind.keyType) and can_be_measured(kind.valueType)
    return isinstance(kind, (StringType, BinaryType, *_OF_FIXED_WIDTH)) or _is_variant(kind)


def _is_variant(kind: DataType) -> bool:
    return kind.typeName() == "variant"  # which Spark 3.5 does not have


class _Width(NamedTuple):
    """SQL for the bytes of a value that vary, or nothing, and the number of the others."""

    varying: str
    fixed: int


def _width(value: str, kind: DataType, depth: int) -> _Width:
    if isinstance(kind, (StringType, BinaryType)):
        return _Width(f"coalesce(octet_length({value}), 0)", _BYTES_OF_NUMBER)
    if isinstance(kind, StructType):
        fields = [_width(f"{value}.{back_quoted(f.name)}", f.dataType, depth) for f in kind.fields]
        varying = " + ".join(each.varying for each in fields if each.varying)
        return _Width(varying, sum(each.fixed for each in fields))
    if isinstance(kind, ArrayType):
        return _Width(_width_of_items(value, kind.elementType, depth), _BYTES_OF_NUMBER)
    if isinstance(kind, MapType):
        keys = _width_of_items(f"map_keys({value})", kind.keyType, depth)
        values = _width_of_items(f"map_values({value})", kind.valueType, depth)
        return _Width(f"{keys} + {values}", _BYTES_OF_NUMBER)
    if _is_variant(kind):
        text = f"coalesce(octet_length(CAST({value} AS STRING)), 0)"
        return _Width(text, _BYTES_OF_OTHERS)
    if not isinstance(kind, _OF_FIXED_WIDTH):
        return _Width("NULL", 0)  # see `can_be_measured`
    return _Width("", _BYTES_OF_OTHERS if isinstance(kind, DecimalType) else _BYTES_OF_NUMBER)


def _width_of_items(items: str, kind: DataType, depth: int) -> str:
    total, item = f"total{depth}", f"item{depth}"
    text, fixed = _width(item, kind, depth + 1)
    if not text:
        return f"coalesce(array_size({items}), 0) * {fixed}L"
    added = f"({total}, {item}) -> {total} + {fixed}L + {text}"
    return f"coalesce(aggregate({items}, 0L, {added}), 0L)"
