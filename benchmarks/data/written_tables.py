"""Writes Delta tables without Spark: the rows by pyarrow, and the log as Delta's protocol says.

So a log can name files that do not exist, and writing a table of many files takes seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Action = Mapping[str, Any]

_TYPES = {"int64": "long", "int32": "integer", "double": "double", "string": "string"}
_TYPES |= {"binary": "binary"}


def write_table(
    path: Path,
    files: Iterable[pa.Table],
    *,
    measured: Sequence[str] = (),
    deletion_vectors: bool = False,
) -> Path:
    """Write a table of these files, with statistics of these columns; return its path."""
    adds, schema = [], None
    for number, rows in enumerate(files):
        adds.append(write_file(path, f"part-{number}.parquet", rows, measured))
        schema = rows.schema
    write_commit(path, 0, [*table_actions(schema, deletion_vectors=deletion_vectors), *adds])
    return path


def table_actions(
    schema: pa.Schema, *, deletion_vectors: bool, partitioned_by: Sequence[str] = ()
) -> list[Action]:
    """Return the actions that define a table: its protocol, schema and properties."""
    fields = [
        {"name": field.name, "type": _TYPES[str(field.type)], "nullable": True, "metadata": {}}
        for field in schema
    ]
    features = ["deletionVectors"] if deletion_vectors else []
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    metadata = {
        "id": "00000000-0000-0000-0000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitioned_by),
        "configuration": {"delta.enableDeletionVectors": "true"} if deletion_vectors else {},
        "createdTime": 0,
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def write_file(
    table: Path,
    name: str,
    rows: pa.Table,
    measured: Sequence[str],
    partition: Mapping[str, str] | None = None,
) -> Action:
    """Write a data file; return the action that adds it, with statistics of these columns."""
    path = table / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
    bounds = {column: pc.min_max(rows[column]).as_py() for column in measured}
    statistics = {
        "numRecords": rows.num_rows,
        "minValues": {column: each["min"] for column, each in bounds.items()},
        "maxValues": {column: each["max"] for column, each in bounds.items()},
        "nullCount": {column: rows[column].null_count for column in measured},
    }
    add = {
        "path": name,
        "partitionValues": dict(partition or {}),
        "size": path.stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps(statistics),
    }
    return {"add": add}


def write_commit(table: Path, version: int, actions: Sequence[Action]) -> None:
    """Write the commit of a version with these actions."""
    operation = {"timestamp": 0, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    file = table / "_delta_log" / _file(version, "json")
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(each) for each in ({"commitInfo": operation}, *actions)]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_checkpoint(
    table: Path, version: int, actions: Sequence[Action], further: pa.Array | None = None
) -> None:
    """Write the checkpoint of a version with these actions, and the pointer to it.

    Args:
        table: The table's directory.
        version: The version.
        actions: Actions of any kind.
        further: More AddFiles, as an array of structs with the fields of `add_type`.
    """
    log = table / "_delta_log"
    types = {**_table_types(), "add": add_type()}
    schema = pa.schema(list(types.items()))
    columns = [
        pa.array([_as_maps(action.get(name)) for action in actions], kind)
        for name, kind in types.items()
    ]
    size = len(actions)
    with pq.ParquetWriter(log / _file(version, "checkpoint.parquet"), schema) as file:
        file.write_table(pa.table(columns, schema=schema))
        if further is not None:
            none = {name: pa.nulls(len(further), kind) for name, kind in types.items()}
            file.write_table(pa.table({**none, "add": further}, schema=schema))
            size += len(further)
    pointer = {"version": version, "size": size}
    (log / "_last_checkpoint").write_text(json.dumps(pointer))


def add_type() -> pa.DataType:
    """Return the type of a checkpoint's column `add`."""
    fields = [
        ("path", pa.string()),
        ("partitionValues", pa.map_(pa.string(), pa.string())),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
    ]
    return pa.struct(fields)


def _table_types() -> dict[str, pa.DataType]:
    """Return the types of a checkpoint's columns `protocol` and `metaData`."""
    texts = pa.map_(pa.string(), pa.string())
    protocol = [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
    metadata = [
        ("id", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", texts)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", texts),
        ("createdTime", pa.int64()),
    ]
    return {"protocol": pa.struct(protocol), "metaData": pa.struct(metadata)}


def _as_maps(value: Any) -> Any:
    """Return the value for Arrow: objects that are maps in a checkpoint become lists of pairs."""
    if not isinstance(value, dict):
        return value
    maps = {"options", "configuration", "partitionValues"}
    return {k: list(v.items()) if k in maps else _as_maps(v) for k, v in value.items()}


def _file(version: int, ending: str) -> str:
    return f"{version:020}.{ending}"
