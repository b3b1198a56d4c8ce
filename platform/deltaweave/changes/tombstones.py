"""Deletes that are remembered beside a table, for events that come after them and are older.

A table of current rows holds nothing of a key that was deleted. Until no older event can come any
more, its delete is kept in a small Delta table in the table's directory, where VACUUM passes by.

It is written before the table is. A crash between the two leaves a delete that the table has not
seen; whoever applies events of that key next, such as the same batch once more, does it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from deltaweave.changes.beside import NOTED, newest_version, note
from deltaweave.changes.combining import DELETED
from deltaweave.changes.events import (
    DELETE,
    OPERATION,
    PREFIX,
    SEQUENCE,
    TRUNCATE,
    Events,
    last_at,
    literal,
)
from deltaweave.identifiers import quoted
from deltaweave.table import Table

DIRECTORY = "_deltaweave_tombstones"

_OF_ALL = f"{PREFIX}of_all_keys"
_REMEMBERED = f"{PREFIX}remembered"


@dataclass(frozen=True)
class Tombstones:
    """The deletes that are remembered of a table.

    Attributes:
        kept_in: The table of them, which is made when there is the first.
        keys: The key columns.
    """

    kept_in: Table
    keys: tuple[str, ...]

    @classmethod
    def of(cls, table: Table, keys: Sequence[str]) -> Tombstones:
        """Those of a table."""
        return cls(Table(table.spark, f"{table.location()}/{DIRECTORY}"), tuple(keys))

    def version(self) -> int:
        """Their newest version; -1 where there are none."""
        return newest_version(self.kept_in)

    def remember(self, events: Events, keep_for: timedelta) -> None:
        """Add the deletes among the events, and forget those of longer ago."""
        if not events.deletes and events.truncated is None:
            return
        of_all = F.col(OPERATION) == TRUNCATE
        # What key a truncate has, if it has one, says nothing.
        keys = [F.when(~of_all, F.col(quoted(key))).alias(key) for key in self.keys]
        newest = (
            events.rows.where(F.col(OPERATION).isin(DELETE, TRUNCATE))
            .select(*keys, of_all.alias(_OF_ALL), SEQUENCE)
            .groupBy(*map(quoted, self.keys), _OF_ALL)
            .agg(F.max(SEQUENCE).alias(SEQUENCE))
        )
        self.create_if_missing(events)
        same = [f"t.{quoted(key)} <=> s.{quoted(key)}" for key in (*self.keys, _OF_ALL)]
        note(self.kept_in, newest, same, keep_for)

    def create_if_missing(self, events: Events) -> None:
        """Make their table, for keys and sequences such as the events have."""
        self.kept_in.create_if_missing(self._schema(events))

    def with_deletes_of_now(self, changes: DataFrame) -> DataFrame:
        """As `with_deletes`, whenever the result is used; truncates are not looked at."""
        of_keys = self.kept_in.read().where(~F.col(_OF_ALL))
        remembered = of_keys.select(*map(quoted, self.keys), F.col(SEQUENCE).alias(_REMEMBERED))
        joined = changes.join(remembered, list(self.keys), "left")
        return joined.withColumn(DELETED, F.greatest(DELETED, _REMEMBERED)).drop(_REMEMBERED)

    def with_deletes(self, changes: DataFrame, events: Events, version: int) -> DataFrame:
        """The changes, one for each key, with what is known of its last delete at a version.

        Args:
            changes: Among others the keys and `_cdc_deleted`, of the events alone.
            events: The events.
            version: The version of these tombstones; -1 where there are none.

        Returns:
            The changes with `_cdc_deleted` of all that is known.
        """
        known: list[Column] = [F.col(DELETED)]
        truncated = events.truncated
        if version >= 0:
            rows = self.kept_in.read(version)
            of_all = rows.where(F.col(_OF_ALL)).agg(F.max(SEQUENCE).alias(SEQUENCE)).first()
            if of_all is not None and of_all[SEQUENCE] is not None:
                before = of_all[SEQUENCE]["at"]
                truncated = before if truncated is None else max(truncated, before)
            of_keys = rows.where(~F.col(_OF_ALL)).select(
                *map(quoted, self.keys), F.col(SEQUENCE).alias(_REMEMBERED)
            )
            changes = changes.join(of_keys, list(self.keys), "left")
            known.append(F.col(_REMEMBERED))
        if truncated is not None:
            at_type = events.sequence_type["at"].dataType
            known.append(last_at(literal(truncated, at_type)))
        latest = F.greatest(*known) if len(known) > 1 else known[0]
        return changes.withColumn(DELETED, latest).drop(_REMEMBERED)

    def _schema(self, events: Events) -> StructType:
        return StructType(
            [
                *[StructField(key, events.rows.schema[key].dataType) for key in self.keys],
                StructField(_OF_ALL, BooleanType()),
                StructField(SEQUENCE, events.sequence_type),
                StructField(NOTED, TimestampType()),
            ]
        )
