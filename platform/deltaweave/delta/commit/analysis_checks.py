"""Checks that the target has not changed since the statement was resolved.

Another commit may have come in between. The statement's values fit only the schema, the type rules
and the identity columns that the analyzer saw.
"""

from __future__ import annotations

import json
from typing import Any

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit.transaction import Transaction
from deltaweave.delta.jvm import JavaObject, condition_and_state, delta_error, translated
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
    is_as_it_was = _is_as_it_was(transaction)
    if not is_as_it_was:
        _check_identity(transaction)
    _check_number_of_columns(transaction)
    if not is_as_it_was:
        _check_schema(transaction)
        _check_type_widening(transaction)
        _check_identity_columns(transaction)
    _check_void_columns(transaction)


def _is_as_it_was(transaction: Transaction) -> bool:
    """Return whether metadata and protocol are those that the statement was resolved against."""
    then, now = transaction.merge.target_index, transaction.transaction
    return bool(then.metadata().equals(now.metadata()) and then.protocol().equals(now.protocol()))


def _check_number_of_columns(transaction: Transaction) -> None:
    """Fail for views that leave columns out, too."""
    columns = json.loads(transaction.metadata.schema_text)["fields"]
    if len(columns) != len(transaction.merge.target_schema):
        now = transaction.transaction.metadata().schema()
        raise _schema_changed(transaction, transaction.merge.target_plan.schema(), now)


def _check_schema(transaction: Transaction) -> None:
    now = transaction.transaction.metadata().schema()
    at_analysis = transaction.merge.target_index.metadata().schema()
    # Values were cast to the types of then, and some ways of writing go by the order of columns.
    # Delta compares the number of columns alone.
    if _types(at_analysis) != _types(now):
        raise _schema_changed(transaction, at_analysis, now)


def _types(schema: JavaObject) -> Any:
    """Return the columns in their order with their types, without other field metadata."""
    return _plain(json.loads(schema.json()))


def _plain(data_type: Any) -> Any:
    if not isinstance(data_type, dict):
        return data_type
    if data_type["type"] == "struct":
        return [(field["name"], _plain(field["type"])) for field in data_type["fields"]]
    inner = ("elementType", "keyType", "valueType")
    return [data_type["type"], *(_plain(data_type[name]) for name in inner if name in data_type)]


def _check_identity(transaction: Transaction) -> None:
    """Fail where another table is in its place, whose columns may be the same."""
    resolved = transaction.merge.target_index.metadata()
    if resolved.id() != transaction.transaction.metadata().id():
        raise _metadata_changed(transaction)


def _check_type_widening(transaction: Transaction) -> None:
    then, now = transaction.merge.target_index, transaction.transaction
    with translated(transaction.merge.table, version=transaction.version):
        check_type_widening(transaction.merge.spark, then, now)


def _check_identity_columns(transaction: Transaction) -> None:
    """Fail if an identity column has moved on: values from its old mark could be used twice."""
    if not transaction.merge.of_kind("not_matched"):
        return
    resolved = transaction.merge.target_index.metadata()
    now = transaction.transaction.metadata()
    if _high_water_marks(resolved) != _high_water_marks(now):
        raise _metadata_changed(transaction)


def _high_water_marks(metadata: JavaObject) -> dict[str, int]:
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
    if not jvm_.is_on(merge.spark, key, otherwise=False):
        return
    migrated = merge.node.migratedSchema()
    if not migrated.isDefined():
        return
    view = jvm_.jvm(merge.spark)
    utils = jvm_.singleton(view.org.apache.spark.sql.delta.schema, "SchemaUtils")
    column = utils.findNullTypeColumn(migrated.get())
    if column.isDefined():
        error = delta_error(view, "mergeAddVoidColumn", column.get())
        error_class, sql_state = condition_and_state(error)
        raise StatementError(
            error.getMessage(),
            table=merge.table,
            version=transaction.version,
            error_class=error_class,
            sql_state=sql_state,
            hint="Cast the column to a type in the source.",
        )


def _metadata_changed(transaction: Transaction) -> SchemaChangedError:
    return _changed(transaction, metadata_changed(transaction.merge.spark, transaction.transaction))


def _schema_changed(
    transaction: Transaction, then: JavaObject, now: JavaObject
) -> SchemaChangedError:
    view = jvm_.jvm(transaction.merge.spark)
    return _changed(transaction, delta_error(view, "schemaChangedSinceAnalysis", then, now, False))


def _changed(transaction: Transaction, error: JavaObject) -> SchemaChangedError:
    error_class, sql_state = condition_and_state(error)
    return SchemaChangedError(
        error.getMessage(),
        table=transaction.merge.table,
        version=transaction.version,
        error_class=error_class,
        sql_state=sql_state,
        hint="Run the statement again: it is resolved against the new schema.",
    )
