"""An anti join by keys, which compares hashes of several key columns first."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, TimestampType

from deltaweave.identifiers import quoted

# Equal values of these types have equal hashes.
_HASHED = (IntegerType, LongType, DateType, TimestampType)
_HASH = "_cdc_key_hash"


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
