"""DataFrames and Columns in few py4j calls.

PySpark's own functions take up to eleven each, to note where in Python they were called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StructField, StructType

from deltaweave.delta.jvm.gateway import JavaObject, Jvm
from deltaweave.delta.jvm.sessions import active, in_session, own_session

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


def column_named(spark: SparkSession, name: str) -> Column:
    """Return a column of the rows by its name; backticks allow dots and backticks in it."""
    return Column(_functions(spark).col(name))


def unique_number(spark: SparkSession) -> Column:
    """Build a column with a bigint for each row, other than those of all other rows."""
    return Column(_functions(spark).monotonically_increasing_id())


def constant(spark: SparkSession, value: int | bool) -> Column:
    """Build a constant column: a number or truth value."""
    return Column(_functions(spark).lit(value))


def sql_expression(spark: SparkSession, text: str) -> Column:
    """Build a column from a SQL expression."""
    return Column(_functions(spark).expr(text))


def parsed_expression(spark: SparkSession, text: str) -> Column:
    """Parse a caller's SQL expression, in which back quotes enclose names, as they do in a MERGE.

    `F.expr` and `where` take them for regular expressions if the session says so (`own_session`).
    """
    with active(spark), own_session(spark) as own:
        parser = own._jsparkSession.sessionState().sqlParser()
        return Jvm.of(own).column_of(parser.parseExpression(text))


def value_where(spark: SparkSession, condition: Column, value: Column) -> Column:
    """Build a column of the value where a condition is true, else null."""
    return Column(_functions(spark).when(condition._jc, value._jc))


def between(column: Column, first: int, last: int) -> Column:
    """Return whether the column is in a range, with its ends."""
    return Column(column._jc.between(first, last))


def aliased(column: Column, name: str) -> Column:
    """Give a column a name."""
    return Column(getattr(column._jc, "as")(name))


def cast_to(spark: SparkSession, column: Column, data_type: DataType) -> Column:
    """Cast a column to a type with nulls allowed in nested values: Spark casts none to others."""
    types = Jvm.of(spark).sql.types
    nullable = types.DataType.fromJson(data_type._as_nullable().json())
    return Column(column._jc.cast(nullable))


def cast_strictly(
    spark: SparkSession, column: Column, data_type: DataType, *, zone: str | None = None
) -> Column:
    """Cast a column; a value that does not fit is an error, whatever the session sets.

    Times without a zone are in the given one, by default the session's.
    """
    jvm = Jvm.of(spark)
    wanted = jvm.sql.types.DataType.fromJson(data_type.json())
    expressions = jvm.catalyst.expressions
    ansi = jvm.singleton(expressions, "EvalMode").ANSI()
    value = jvm.expression_of(column)
    return jvm.column_of(expressions.Cast(value, wanted, jvm.option(zone), ansi))


def with_column(rows: DataFrame, name: str, column: Column) -> DataFrame:
    """Add a column to the rows."""
    return DataFrame(rows._jdf.withColumn(name, column._jc), rows.sparkSession)


def selected(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Select columns of the rows; each takes one further call."""
    spark = rows.sparkSession
    chosen = Jvm.of(spark).seq([column._jc for column in columns])
    return DataFrame(rows._jdf.select(chosen), spark)


_TIMES_IN_JSON = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def json_text(value: Column, *, with_nulls: bool = False, as_in_log: bool = False) -> Column:
    """Return a struct, array or map as JSON; its null fields are there if asked for.

    Times have microseconds, and are in UTC in whatever zone the session is; `as_in_log`, they are
    as Delta writes statistics.
    """
    options = {"ignoreNullFields": "false" if with_nulls else "true"}
    return F.to_json(value, options if as_in_log else {**options, **_TIMES_IN_JSON})


def grouped(rows: DataFrame, keys: Sequence[Column | str], values: Sequence[Column]) -> DataFrame:
    """Return the keys of each group of rows and the values of the group, whatever the session sets.

    `groupBy(…).agg(…)` leaves the keys out where `spark.sql.retainGroupColumns` is off.
    """
    spark = rows.sparkSession
    with own_session(spark) as own:
        found = in_session(rows, own).groupBy(*keys).agg(*values)
        return in_session(found, spark)


def _functions(spark: SparkSession) -> JavaObject:
    return Jvm.singleton(Jvm.of(spark).sql, "functions")


def rows_of_numbers(
    spark: SparkSession, rows: Sequence[Sequence[int]], columns: Sequence[str]
) -> DataFrame:
    """Build a DataFrame of BIGINT columns, with the rows in its plan; the active session stays."""
    jvm, gateway = Jvm.of(spark), spark.sparkContext._gateway
    java_rows = jvm.java.util.ArrayList()
    for row in rows:
        numbers: Any = gateway.new_array(gateway.jvm.long, len(row))  # type: ignore[union-attr]
        for index, number in enumerate(row):
            numbers[index] = number
        # Objects of Long: py4j would make an Integer of a small number.
        objects = jvm.java.util.stream.LongStream.of(numbers).boxed().toArray()
        java_rows.add(jvm.sql.RowFactory.create(objects))
    schema = StructType([StructField(name, LongType()) for name in columns])
    java_schema = jvm.sql.types.DataType.fromJson(schema.json())
    return DataFrame(spark._jsparkSession.createDataFrame(java_rows, java_schema), spark)


def collected(rows: DataFrame) -> pyarrow.Table:
    """Collect rows as Arrow, whose texts and bytes have offsets of 32 bits.

    PySpark uses 64 bits where `spark.sql.execution.arrow.useLargeVarTypes` is on, and Arrow
    compares no such text with one of 32. That setting is also for the functions of users, so it
    stays on for the query.
    """
    import pyarrow as pa

    table = rows.toArrow()
    fields = [field.with_type(_with_small_offsets(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _with_small_offsets(kind: pyarrow.DataType) -> pyarrow.DataType:
    import pyarrow as pa
    from pyarrow import types

    def small(field: pyarrow.Field) -> pyarrow.Field:
        return field.with_type(_with_small_offsets(field.type))

    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([small(kind.field(index)) for index in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(small(kind.key_field), small(kind.item_field))
    return pa.list_(small(kind.value_field)) if types.is_list(kind) else kind


def plan_text(rows: DataFrame) -> str:
    """Return the plans of a query, from parsed to physical, as Spark prints them."""
    return str(rows._jdf.queryExecution().toString())
