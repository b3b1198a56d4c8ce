"""Checks that the target has not changed since the statement was resolved.

Another commit may have come in between. The statement's values fit only the schema, the type rules
and the identity columns that the analyzer saw.
"""

from __future__ import annotations

import json
from typing import Any

from deltaweave.delta.commit.transaction import Transaction
from deltaweave.delta.jvm import (
    DeltaMessage,
    DeltaMetadata,
    JavaObject,
    Jvm,
    is_on,
)
from deltaweave.delta.releases import check_type_widening, metadata_changed
from deltaweave.errors import SchemaChangedError, StatementError

_HIGH_WATER_MARK = "delta.identity.highWaterMark"


def check_since_analysis(transaction: Transaction) -> None:
    """Fail where the table is not the one the statement was resolved against.

    Raises:
        SchemaChangedError: With Delta's wording of the difference.
        CommitConflictError: Type widening was switched on or off in between.
        StatementError: The statement adds a column without a type.
    """
    is_as_it_was = _is_unchanged(transaction)
    if not is_as_it_was:
        _check_identity(transaction)
    _check_number_of_columns(transaction)
    if not is_as_it_was:
        _check_schema(transaction)
        _check_type_widening(transaction)
        _check_identity_columns(transaction)
    _check_void_columns(transaction)


def _is_unchanged(transaction: Transaction) -> bool:
    """Return whether metadata and protocol are those that the statement was resolved against."""
    before, after = transaction.merge.target_index, transaction.transaction
    return bool(
        before.metadata().equals(after.metadata()) and before.protocol().equals(after.protocol())
    )


def _check_number_of_columns(transaction: Transaction) -> None:
    """Fail for views that leave columns out, too."""
    columns = json.loads(transaction.metadata.schema_text)["fields"]
    if len(columns) != len(transaction.merge.target_schema):
        after = transaction.transaction.metadata().schema()
        raise _schema_changed(transaction, transaction.merge.target_plan.schema(), after)


def _check_schema(transaction: Transaction) -> None:
    after = transaction.transaction.metadata().schema()
    at_analysis = transaction.merge.target_index.metadata().schema()
    # Values were cast to the types of then, and some ways of writing go by the order of columns.
    # Delta compares the number of columns alone.
    if _types(at_analysis) != _types(after):
        raise _schema_changed(transaction, at_analysis, after)


def _types(schema: JavaObject) -> Any:
    """Return the columns in their order with their types, without other field metadata."""
    return _without_metadata(json.loads(schema.json()))


def _without_metadata(data_type: Any) -> Any:
    if not isinstance(data_type, dict):
        return data_type
    if data_type["type"] == "struct":
        return [(field["name"], _without_metadata(field["type"])) for field in data_type["fields"]]
    inner = ("elementType", "keyType", "valueType")
    return [
        data_type["type"],
        *(_without_metadata(data_type[name]) for name in inner if name in data_type),
    ]


def _check_identity(transaction: Transaction) -> None:
    """Fail where another table is in its place, whose columns may be the same."""
    resolved = transaction.merge.target_index.metadata()
    if resolved.id() != transaction.transaction.metadata().id():
        raise _metadata_changed(transaction)


def _check_type_widening(transaction: Transaction) -> None:
    before, after = transaction.merge.target_index, transaction.transaction
    with transaction.translated():
        check_type_widening(transaction.merge.spark, before, after)


def _check_identity_columns(transaction: Transaction) -> None:
    """Fail if an identity column has moved on: values from its old mark could be used twice."""
    if not transaction.merge.of_kind("not_matched"):
        return
    resolved = transaction.merge.target_index.metadata()
    after = transaction.transaction.metadata()
    if _high_water_marks(resolved) != _high_water_marks(after):
        raise _metadata_changed(transaction)


def _high_water_marks(metadata: DeltaMetadata) -> dict[str, int]:
    """Return the last value that each identity column has given out, if any."""
    schema = metadata.schemaString()
    if _HIGH_WATER_MARK not in schema:
        return {}
    return {
        field["name"]: field["metadata"][_HIGH_WATER_MARK]
        for field in json.loads(schema)["fields"]
        if _HIGH_WATER_MARK in field["metadata"]
    }


def _check_void_columns(transaction: Transaction) -> None:
    """Refuse a column of type void that a merge would add: Delta drops such columns on read."""
    merge = transaction.merge
    key = "spark.databricks.delta.createDataFrame.dropNullColumns"
    if not is_on(merge.spark, key, otherwise=False):
        return
    migrated = merge.node.migratedSchema()
    if not migrated.isDefined():
        return
    jvm = Jvm.of(merge.spark)
    utils = Jvm.singleton(jvm.delta.schema, "SchemaUtils")
    column = utils.findNullTypeColumn(migrated.get())
    if column.isDefined():
        message = DeltaMessage.of(jvm.delta_error("mergeAddVoidColumn", column.get()))
        raise StatementError(
            message.text,
            table=merge.table,
            version=transaction.version,
            error_class=message.error_class,
            sql_state=message.sql_state,
            hint="Cast the column to a type in the source.",
        )


def _metadata_changed(transaction: Transaction) -> SchemaChangedError:
    return _changed(transaction, metadata_changed(transaction.merge.spark, transaction.transaction))


def _schema_changed(
    transaction: Transaction, before: JavaObject, after: JavaObject
) -> SchemaChangedError:
    jvm = Jvm.of(transaction.merge.spark)
    return _changed(
        transaction, jvm.delta_error("schemaChangedSinceAnalysis", before, after, False)
    )


def _changed(transaction: Transaction, error: JavaObject) -> SchemaChangedError:
    message = DeltaMessage.of(error)
    return SchemaChangedError(
        message.text,
        table=transaction.merge.table,
        version=transaction.version,
        error_class=message.error_class,
        sql_state=message.sql_state,
        hint="Run the statement again: it is resolved against the new schema.",
    )
