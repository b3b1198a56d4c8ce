"""Rows with the types of a table's columns, as an INSERT casts them.

Spark casts the fields of a struct by position, whatever their names. So they are put in the table's
order first, at every depth.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.statement import spark_schema
from deltaweave.identifiers import column


def assigned(rows: DataFrame, transaction: JavaObject, *, may_evolve: bool) -> DataFrame:
    """Cast the rows to the table's types as an INSERT does; values that do not fit fail.

    Not cast are columns that the table lacks, types that cannot be assigned and structs with fields
    of other names (Delta's writer refuses them by name), and types to which the table may widen.

    Args:
        rows: The rows.
        transaction: Delta's transaction.
        may_evolve: Whether the rows may add columns to the table, and widen types.
    """
    spark = rows.sparkSession
    view = jvm_.jvm(spark)
    expressions = view.org.apache.spark.sql.catalyst.expressions
    cast = jvm_.singleton(expressions, "Cast")
    ansi = jvm_.singleton(expressions, "EvalMode").ANSI()
    metadata = transaction.metadata()
    widening = metadata.configuration().get("delta.enableTypeWidening")
    may_widen = may_evolve and widening.isDefined() and widening.get() == "true"
    rows, with_other_fields = _in_order(rows, metadata.schema())
    wanted = {field.name().lower(): field.dataType() for field in metadata.schema().fields()}

    def value(field: JavaObject) -> Column:
        own, name = column(field.name()), field.name()
        given, target = field.dataType(), wanted.get(name.lower())
        if (
            target is None
            or given.equals(target)
            or name.lower() in with_other_fields
            or (may_widen and cast.canUpCast(target, given))
            or not cast.canANSIStoreAssign(given, target)
        ):
            return own
        nothing = jvm_.option(view, None)
        of_target = expressions.Cast(jvm_.expression_of(spark, own), target, nothing, ansi)
        return jvm_.column_of(spark, of_target).alias(name)

    return rows.select([value(field) for field in rows._jdf.schema().fields()])


def _in_order(rows: DataFrame, schema: JavaObject) -> tuple[DataFrame, set[str]]:
    """Put the fields of structs in the order of a table's.

    Args:
        rows: The rows.
        schema: The table's schema, of the JVM.

    Returns:
        The rows, and the names in lower case of columns with structs of other fields, as they are.
    """
    table = spark_schema(rows.sparkSession, schema)
    wanted = {field.name.lower(): field.dataType for field in table}
    fields, others = [], set()
    for field in rows.schema:
        target = wanted.get(field.name.lower())
        kind = field.dataType if target is None else _ordered(field.dataType, target)
        if kind is None:
            others.add(field.name.lower())
        kind = kind or field.dataType
        fields.append(StructField(field.name, kind, field.nullable, field.metadata))
    types = [field.dataType for field in rows.schema]
    is_in_order = [field.dataType for field in fields] == types
    return rows if is_in_order else rows.to(StructType(fields)), others


def _ordered(given: DataType, wanted: DataType) -> DataType | None:
    """Put the fields of a type's structs in another's order; None if their names differ."""
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        there = {field.name.lower(): field for field in given}
        if len(there) != len(given) or there.keys() != {field.name.lower() for field in wanted}:
            return None
        fields = []
        for target in wanted:
            field = there[target.name.lower()]
            kind = _ordered(field.dataType, target.dataType)
            if kind is None:
                return None
            fields.append(StructField(field.name, kind, field.nullable, field.metadata))
        return StructType(fields)
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        element = _ordered(given.elementType, wanted.elementType)
        return None if element is None else ArrayType(element, given.containsNull)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        key = _ordered(given.keyType, wanted.keyType)
        value = _ordered(given.valueType, wanted.valueType)
        if key is None or value is None:
            return None
        return MapType(key, value, given.valueContainsNull)
    return given
