"""Base and changes of a merge-on-read table as one: the ways to join them.

The changes are folded to one row for each key first. Then, for each row of the base:

- `double_rank`: both are put together and the newest of each key is kept. Shuffles the base.
- `full_outer_join`: shuffles the base by its keys, too.
- `left_join_anti_join`: the base left-joined with the changes, and the changes of other keys: the
  base is not shuffled where the changes can be broadcast, and its keys are read a second time.
- `left_join_inserts`: the same, where events say which of them insert: only keys with a known
  delete are looked for in the base's keys, which are not read where there is no such key.
- `anti_join`: the base without the changed keys, and the changes in their place, where all changes
  are whole rows and newer than whatever the base holds: nothing but their keys is sent to it.

The last does best, then the fourth, where they can be; else the third, unless the changes are too
many to be broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from deltaweave.changes.combining import DELETED, UPSERTED, combined, new_row
from deltaweave.changes.events import INSERTED, SEQUENCE, VALUES, EventShape
from deltaweave.changes.other_keys import with_other_keys
from deltaweave.errors import StatementError
from deltaweave.identifiers import quoted

ViewMethod = Literal[
    "double_rank", "full_outer_join", "left_join_anti_join", "left_join_inserts", "anti_join"
]
METHODS: tuple[str, ...] = get_args(ViewMethod)

_IN_BASE = "_cdc_in_base"


@dataclass(frozen=True)
class MergedView:
    """The two sides of a merge-on-read table.

    Attributes:
        base: Its rows: the keys, the other columns, `_cdc_sequence` and, where events may leave
            columns out, `_cdc_column_sequences`.
        changes: One row for each changed key, as `current_rows.newest_of_keys` makes them; with
            `_cdc_inserted` (boolean) where events tell inserts.
        shape: How the events were read.
        broadcasts: Whether the changes are small enough to be sent to every task.
        are_newer: Whether every change is known to be newer than all of the base.
    """

    base: DataFrame
    changes: DataFrame
    shape: EventShape
    broadcasts: bool
    are_newer: bool = False

    @property
    def best(self) -> ViewMethod:
        """The method that is the fastest of those that fit."""
        tells_inserts = INSERTED in self.changes.columns
        return "left_join_inserts" if tells_inserts and not self._replaces else self.best_for_all

    @property
    def best_for_all(self) -> ViewMethod:
        """The fastest that does not depend on what events say of themselves."""
        if self._replaces:
            return "anti_join"
        return "left_join_anti_join" if self.broadcasts else "full_outer_join"

    @property
    def _replaces(self) -> bool:
        """Whether changes take the place of rows, whatever these hold."""
        return self.are_newer and not self.shape.is_partial

    def rows(self, method: ViewMethod) -> DataFrame:
        """The rows, with all columns of the base.

        Raises:
            StatementError: The method does not fit these events.
        """
        if method == "double_rank":
            return self._ranked()
        if method == "full_outer_join":
            return self._joined("full_outer", self.changes)
        if method == "left_join_anti_join":
            return self._joined("left", self._sent(self.changes)).unionByName(self._not_in_base())
        if method == "anti_join":
            return self._replaced()
        if INSERTED not in self.changes.columns:
            raise StatementError(
                "left_join_inserts needs to be told which events insert.",
                operation="reading",
                hint="Say it with inserts=, or use left_join_anti_join.",
            )
        # After a delete, no event knows whether it inserts: the base may hold the row still, may
        # have lost it, or may hold the next one of its key. Other events may not tell (null).
        is_insert = F.coalesce(INSERTED, F.lit(False)) & F.col(DELETED).isNull()
        others = self.changes.where(~is_insert)
        is_untold = F.col(INSERTED).isNull() | F.col(DELETED).isNotNull()
        returned = others.where(is_untold & F.col(UPSERTED).isNotNull())
        return (
            self._joined("left", self._sent(others))
            .unionByName(self._new(self.changes.where(is_insert)))
            .unionByName(replace(self, changes=returned)._not_in_base())
        )

    def _sent(self, changes: DataFrame) -> DataFrame:
        return F.broadcast(changes) if self.broadcasts else changes

    @property
    def _keys(self) -> list[str]:
        return list(self.shape.keys)

    def _joined(self, how: Literal["left", "full_outer"], changes: DataFrame) -> DataFrame:
        """The base's rows with their changes; with a full join, new rows too."""
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
            keys = {key: f"coalesce({of}, c.{quoted(key)})" for key, of in keys.items()}
        return _selected(joined.where(after.is_there), {**keys, **after.values})

    def _replaced(self) -> DataFrame:
        if not self._replaces:
            raise StatementError(
                "anti_join needs changes that are whole rows and newer than all of the base.",
                operation="reading",
                hint="Use auto, which takes it where it can.",
            )
        keys = self.changes.select(*map(quoted, self._keys))
        kept = with_other_keys(self.base, keys, self._keys, broadcasts=self.broadcasts)
        return kept.unionByName(self._new(self.changes))

    def _not_in_base(self) -> DataFrame:
        """The changes of keys that the base does not have, as rows."""
        keys = [quoted(key) for key in self._keys]
        # First which of the changed keys the base has: it is read without a shuffle, keys alone.
        changed = self._sent(self.changes.select(*keys))
        known = self.base.select(*keys).join(changed, self._keys, "left_semi")
        return self._new(self.changes.join(self._sent(known), self._keys, "left_anti"))

    def _new(self, changes: DataFrame) -> DataFrame:
        """Changes as the rows that they are where the base has none."""
        alive = changes.where(F.col(UPSERTED).isNotNull())
        keys = {key: quoted(key) for key in self._keys}
        return _selected(alive, {**keys, **new_row(self.shape, quoted)})

    def _ranked(self) -> DataFrame:
        if self.shape.is_partial:
            raise StatementError(
                "double_rank keeps whole rows, and these events may speak of some columns alone.",
                operation="reading",
                hint="Use left_join_anti_join or full_outer_join.",
            )
        keys = [quoted(key) for key in self._keys]
        changes = self.changes.select(
            *keys,
            *[F.col(VALUES)[c].alias(c) for c in self.shape.columns],
            F.greatest(UPSERTED, DELETED).alias(SEQUENCE),
            F.col(UPSERTED).isNull().alias("_cdc_gone"),
        )
        both = self.base.withColumn("_cdc_gone", F.lit(False)).unionByName(changes)
        newest_first = Window.partitionBy(*keys).orderBy(
            F.col(SEQUENCE).desc_nulls_last(), F.col("_cdc_gone").desc()
        )
        ranked = both.withColumn("_cdc_rank", F.row_number().over(newest_first))
        return ranked.where("_cdc_rank = 1 AND NOT _cdc_gone").drop("_cdc_rank", "_cdc_gone")


def _selected(rows: DataFrame, values: Mapping[str, str]) -> DataFrame:
    return rows.selectExpr(*[f"{value} AS {quoted(name)}" for name, value in values.items()])
