"""Whether the changes that wait are all newer than whatever the base holds, as the logs tell it.

As a rule they are: what came late came before the last rematerialization. A row of the base then
goes where its key has a change, whatever either holds, and need not be read to be compared.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from deltaweave.changes.events import SEQUENCE
from deltaweave.delta.file_list import FileList
from deltaweave.identifiers import literal

_TIMES = (TimestampType, TimestampNTZType)
# Others have no bounds in statistics, or bounds that are cut off.
_BOUNDED = (ByteType, ShortType, IntegerType, LongType, DateType, *_TIMES)


def are_newer(changes: FileList, base: FileList, sequence: StructType) -> bool:
    """Whether every change's sequence is above all of the base.

    Of a sequence with several parts, the first is compared. False also where statistics do not
    tell: they lack the column behind the first 32, or are of a type whose bounds are not exact.

    Args:
        changes: The files of the changes.
        base: The base's files.
        sequence: The type of `_cdc_sequence`.
    """
    import pyarrow.compute as pc

    path, data_type = _first_part(sequence)
    is_whole = isinstance(data_type, DecimalType) and data_type.scale == 0
    if not is_whole and not isinstance(data_type, _BOUNDED):
        return False
    if not len(changes) or not len(base):
        return True
    name = data_type.simpleString()
    lowest, highest = (
        f"try_cast({_statistic(of, path)} AS {name})" for of in ("minValues", "maxValues")
    )
    if isinstance(data_type, _TIMES):
        highest += " + INTERVAL 1 MILLISECOND"  # they are cut off there
    in_base = base.data_frame.selectExpr(highest, "null", _is_unknown(highest, path))
    in_changes = changes.data_frame.selectExpr("null", lowest, _is_unknown(lowest, path))
    found = in_base.unionAll(in_changes).toDF("held", "came", "is_unknown").toArrow()
    if pc.any(found["is_unknown"]).as_py():
        return False
    held, came = pc.max(found["held"]), pc.min(found["came"])
    return not (held.is_valid and came.is_valid) or bool(pc.less(held, came).as_py())


def _first_part(sequence: StructType) -> tuple[list[str], DataType]:
    path: list[str] = [SEQUENCE]
    data_type: DataType = sequence
    while isinstance(data_type, StructType):
        path.append(data_type[0].name)
        data_type = data_type[0].dataType
    return path, data_type


def _statistic(kind: str, path: list[str]) -> str:
    names = "".join(f"['{name}']" for name in path)
    return f"get_json_object(stats, {literal(f'$.{kind}{names}')})"


def _is_unknown(bound: str, path: list[str]) -> str:
    """Whether a file may hold sequences of which its statistics do not tell."""
    rows = "try_cast(get_json_object(stats, '$.numRecords') AS bigint)"
    nulls = f"try_cast({_statistic('nullCount', path)} AS bigint)"
    return f"{bound} IS NULL AND NOT coalesce({rows} = {nulls}, false)"
