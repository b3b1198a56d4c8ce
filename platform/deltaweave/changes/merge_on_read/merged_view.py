"""The ways to join base and changes of a merge-on-read table.

The changes are combined to one row for each key first. Then one of these joins follows:

- `double_rank`: the newest row of each key in the union of both. It shuffles the base.
- `full_outer_join`: it shuffles the base too.
- `left_join_anti_join`: the base left-joined with the changes, and an anti join for the changes of
  new keys. If the changes can be broadcast, the base is not shuffled. Its keys are read twice.
- `left_join_inserts`: the same for events that say that they insert. Only keys with a known delete
  are looked up in the base's keys; without such a key these are not read.
- `anti_join`: the base without the changed keys, and the changes. It needs changes that are whole
  rows and newer than all rows of the base. Only their keys are broadcast.

The last is the fastest, then the fourth, if they are possible. Otherwise the third is, unless the
changes are too many to be broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, TimestampType

from deltaweave.changes.current import CHANGED, UPSERTED, combined, new_row, regenerated
from deltaweave.changes.epochs import NEWEST, unless_of_other_log
from deltaweave.changes.events import EVENT_VALUES, INSERTED, SEQUENCE, EventShape
from deltaweave.changes.side_tables import DELETED
from deltaweave.errors import StatementError
from deltaweave.identifiers import quoted

ViewMethod = Literal[
    "double_rank", "full_outer_join", "left_join_anti_join", "left_join_inserts", "anti_join"
]
METHODS: tuple[str, ...] = get_args(ViewMethod)

_IN_BASE = "_cdc_in_base"

# Equal values of these types have equal hashes.
_HASHED = (IntegerType, LongType, DateType, TimestampType)
_HASH = "_cdc_key_hash"


@dataclass(frozen=True)
class MergedView:
    """The two sides of a merge-on-read table.

    Attributes:
        base: The rows of the base: the keys, the other columns, `_cdc_sequence` and, if events may
            leave columns out, `_cdc_column_sequences`.
        changes: One row for each changed key, from `newest_of_keys`; with `_cdc_inserted` (boolean)
            if events say that they insert.
        broadcasts: Whether the changes are small enough to be broadcast.
        are_newer: Whether every change is known to be newer than all of the base.
        is_emptied: Whether an event empties the base.
        may_be_merged: Whether the base may have some of the changes already.
        generated: The SQL of columns that the base generates from others, by name.
    """

    base: DataFrame
    changes: DataFrame
    shape: EventShape
    broadcasts: bool
    are_newer: bool = False
    is_emptied: bool = False
    may_be_merged: bool = False
    generated: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> ViewMethod:
        """The fastest of the methods that are possible."""
        if INSERTED in self.changes.columns and not (self._replaces or self.may_be_merged):
            return "left_join_inserts"
        return self.best_for_all

    @property
    def best_for_all(self) -> ViewMethod:
        """The fastest method that does not rely on events that say that they insert."""
        if self._replaces:
            return "anti_join"
        return "left_join_anti_join" if self.broadcasts else "full_outer_join"

    @property
    def _replaces(self) -> bool:
        """Whether changes replace rows without a comparison."""
        return self.are_newer and not self.shape.is_partial

    def rows(self, method: ViewMethod) -> DataFrame:
        """Return the rows of the view, with all columns of the base.

        Raises:
            StatementError: The method does not fit these events.
        """
        rows = self._combined(method)
        return regenerated(rows, self.generated) if self.generated else rows

    def _combined(self, method: ViewMethod) -> DataFrame:
        """Return the rows with `_cdc_is_changed` if the base generates columns, and these as held.

        In rows that change, they are of any value.
        """
        if method == "left_join_inserts" and (self.is_emptied or self.may_be_merged):
            method = "left_join_anti_join"  # the base may lack keys, or already have inserted ones
        if method == "double_rank":
            return self._newest_ranked()
        if method == "full_outer_join":
            return self._joined("full_outer", self.changes)
        if method == "left_join_anti_join":
            return self._joined("left", self._broadcast_if_small(self.changes)).unionByName(
                self._not_in_base()
            )
        if method == "anti_join":
            return self._anti_joined()
        if INSERTED not in self.changes.columns:
            raise StatementError(
                "left_join_inserts needs `inserts`, which says which events insert.",
                operation="reading",
                hint="Give inserts=, or use left_join_anti_join.",
            )
        # After a delete, no event knows whether it inserts: the base may still hold the row, may
        # have lost it, or may hold the next row of its key. Other events may not say (null).
        is_insert = F.coalesce(INSERTED, F.lit(False)) & F.col(DELETED).isNull()
        others = self.changes.where(~is_insert)
        is_untold = F.col(INSERTED).isNull() | F.col(DELETED).isNotNull()
        returned = others.where(is_untold & F.col(UPSERTED).isNotNull())
        return (
            self._joined("left", self._broadcast_if_small(others))
            .unionByName(self._as_new_rows(self.changes.where(is_insert)))
            .unionByName(replace(self, changes=returned)._not_in_base())
        )

    def _marked(self, rows: DataFrame, *, are_changed: bool) -> DataFrame:
        """Add to the rows whether they change, if the base generates columns."""
        return rows.withColumn(CHANGED, F.lit(are_changed)) if self.generated else rows

    def _broadcast_if_small(self, changes: DataFrame) -> DataFrame:
        return F.broadcast(changes) if self.broadcasts else changes

    @property
    def _keys(self) -> list[str]:
        return list(self.shape.keys)

    def _joined(self, how: Literal["left", "full_outer"], changes: DataFrame) -> DataFrame:
        """Join the base's rows with their changes; with a full join, add new rows too."""
        base, changes = self.base.alias("b"), changes.alias("c")
        if how == "full_outer":
            base = self.base.withColumn(_IN_BASE, F.lit(True)).alias("b")
        same = [f"b.{quoted(key)} = c.{quoted(key)}" for key in self._keys]
        joined = base.join(changes, F.expr(" AND ".join(same)), how)
        after = combined(
            self.shape,
            lambda name: f"b.{quoted(name)}",
            lambda name: f"c.{quoted(name)}",
            f"b.{_IN_BASE} IS NOT NULL" if how == "full_outer" else "true",
        )
        keys = {key: f"b.{quoted(key)}" for key in self._keys}
        if how == "full_outer":
            keys = {key: f"coalesce({own}, c.{quoted(key)})" for key, own in keys.items()}
        held = {name: f"b.{quoted(name)}" for name in self.generated}
        if held:
            held[CHANGED] = after.differs
        return _selected(joined.where(after.is_there), {**keys, **after.values, **held})

    def _anti_joined(self) -> DataFrame:
        if not self._replaces:
            raise StatementError(
                "anti_join needs changes that are whole rows and newer than all of the base.",
                operation="reading",
                hint="Use auto, which chooses it if possible.",
            )
        keys = self.changes.select(*map(quoted, self._keys))
        kept = with_other_keys(self.base, keys, self._keys, broadcasts=self.broadcasts)
        kept = self._marked(kept, are_changed=False)
        return kept.unionByName(self._as_new_rows(self.changes))

    def _not_in_base(self) -> DataFrame:
        """Return the changes of keys that the base lacks, as rows."""
        keys = [quoted(key) for key in self._keys]
        # First find the changed keys that the base has: this reads only its keys, without a
        # shuffle.
        changed = self._broadcast_if_small(self.changes.select(*keys))
        known = self.base.select(*keys).join(changed, self._keys, "left_semi")
        return self._as_new_rows(
            self.changes.join(self._broadcast_if_small(known), self._keys, "left_anti")
        )

    def _as_new_rows(self, changes: DataFrame) -> DataFrame:
        """Convert changes of keys that the base lacks to new rows."""
        alive = changes.where(F.col(UPSERTED).isNotNull())
        keys = {key: quoted(key) for key in self._keys}
        rows = _selected(alive, {**keys, **new_row(self.shape, quoted), **self._ungenerated()})
        return self._marked(rows, are_changed=True)

    def _ungenerated(self) -> dict[str, str]:
        """Return nulls for the columns that the base generates, by name."""
        return {
            name: f"CAST(NULL AS {self.base.schema[name].dataType.simpleString()})"
            for name in self.generated
        }

    def _newest_ranked(self) -> DataFrame:
        if self.shape.is_partial:
            raise StatementError(
                "double_rank keeps whole rows, but these events may leave columns out.",
                operation="reading",
                hint="Use left_join_anti_join or full_outer_join.",
            )
        keys = [quoted(key) for key in self._keys]
        changes = self.changes.select(
            *keys,
            *[F.col(EVENT_VALUES)[c].alias(c) for c in self.shape.columns],
            F.greatest(UPSERTED, DELETED).alias(SEQUENCE),
            F.col(UPSERTED).isNull().alias("_cdc_gone"),
            *([F.col(NEWEST)] if self.shape.log_fields else []),
        )
        base = self._marked(self.base, are_changed=False).withColumn("_cdc_gone", F.lit(False))
        changes = self._marked(changes, are_changed=True)
        both = base.unionByName(changes, allowMissingColumns=True)
        newest_first = Window.partitionBy(*keys).orderBy(
            F.col(SEQUENCE).desc_nulls_last(), F.col("_cdc_gone").desc()
        )
        ranked = both.withColumn("_cdc_rank", F.row_number().over(newest_first))
        is_first = "_cdc_rank = 1 AND NOT _cdc_gone"
        if fields := self.shape.log_fields:
            newest_of_key = F.max(NEWEST).over(Window.partitionBy(*keys))
            ranked = ranked.withColumn(NEWEST, newest_of_key)
            names = {key: quoted(key) for key in self._keys}
            first = unless_of_other_log("NOT _cdc_gone", fields, names, NEWEST, SEQUENCE)
            is_first = f"CASE WHEN _cdc_rank = 1 THEN {first} ELSE false END"
        return ranked.where(is_first).drop("_cdc_rank", "_cdc_gone", NEWEST)


def _selected(rows: DataFrame, values: Mapping[str, str]) -> DataFrame:
    return rows.selectExpr(*[f"{value} AS {quoted(name)}" for name, value in values.items()])


def with_other_keys(
    rows: DataFrame, known: DataFrame, keys: Sequence[str], *, broadcasts: bool
) -> DataFrame:
    """Keep the rows whose key is not in `known`.

    Keys of several columns are looked up by one hash first, because Spark builds and searches a
    hash table of numbers faster than one of rows. The columns are compared only where hashes are
    equal.

    Args:
        rows: The rows.
        known: The keys.
        keys: The key columns, which both have.
        broadcasts: Whether `known` is small enough to be broadcast.
    """
    types = [(rows.schema[key].dataType, known.schema[key].dataType) for key in keys]
    are_hashed = all(one == other and _has_one_hash(one) for one, other in types)
    if len(keys) == 1 or not are_hashed:
        return rows.join(F.broadcast(known) if broadcasts else known, list(keys), "left_anti")
    number = F.xxhash64(*map(quoted, keys)).alias(_HASH)
    # Nested CASEs keep Spark from joining by these columns.
    same = "true"
    for key in keys:
        same = f"CASE WHEN b.{quoted(key)} = c.{quoted(key)} THEN {same} ELSE false END"
    numbered = known.select("*", number)
    numbered = (F.broadcast(numbered) if broadcasts else numbered).alias("c")
    is_same = F.expr(f"b.{_HASH} = c.{_HASH} AND {same}")
    return rows.select("*", number).alias("b").join(numbered, is_same, "left_anti").drop(_HASH)


def _has_one_hash(data_type: object) -> bool:
    if isinstance(data_type, StringType):
        return data_type.simpleString() == "string"  # collations may equate different strings
    return isinstance(data_type, _HASHED)
