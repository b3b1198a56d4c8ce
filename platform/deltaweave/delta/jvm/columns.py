"""Columns and selections in few py4j calls.

PySpark's own functions take up to eleven each, to note where in Python they were called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from deltaweave.delta.jvm.gateway import column_of, expression_of, jvm, option, seq
from deltaweave.delta.jvm.names import JavaObject, singleton
from deltaweave.delta.jvm.sessions import in_session, own_session

if TYPE_CHECKING:
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


def where_true(spark: SparkSession, condition: Column, value: Column) -> Column:
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
    types = jvm(spark).org.apache.spark.sql.types
    nullable = types.DataType.fromJson(data_type._as_nullable().json())
    return Column(column._jc.cast(nullable))


def cast_strictly(spark: SparkSession, column: Column, data_type: DataType) -> Column:
    """Cast a column; a value that does not fit is an error, whatever the session sets."""
    view = jvm(spark)
    wanted = view.org.apache.spark.sql.types.DataType.fromJson(data_type.json())
    expressions = view.org.apache.spark.sql.catalyst.expressions
    ansi = singleton(expressions, "EvalMode").ANSI()
    value = expression_of(spark, column)
    return column_of(spark, expressions.Cast(value, wanted, option(view, None), ansi))


def with_column(rows: DataFrame, name: str, column: Column) -> DataFrame:
    """Add a column to the rows."""
    return DataFrame(rows._jdf.withColumn(name, column._jc), rows.sparkSession)


def selected(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Select columns of the rows; each takes one further call."""
    spark = rows.sparkSession
    chosen = seq(jvm(spark), [column._jc for column in columns])
    return DataFrame(rows._jdf.select(chosen), spark)


def json_text(value: Column, *, with_nulls: bool = False) -> Column:
    """Return a struct, array or map as JSON; its null fields are there if asked for."""
    return F.to_json(value, {"ignoreNullFields": "false" if with_nulls else "true"})


def grouped(rows: DataFrame, keys: Sequence[Column | str], values: Sequence[Column]) -> DataFrame:
    """Return the keys of each group of rows and the values of the group, whatever the session sets.

    `groupBy(…).agg(…)` leaves the keys out where `spark.sql.retainGroupColumns` is off.
    """
    spark = rows.sparkSession
    with own_session(spark) as own:
        found = in_session(rows, own).groupBy(*keys).agg(*values)
        return in_session(found, spark)


def _functions(spark: SparkSession) -> JavaObject:
    return singleton(jvm(spark).org.apache.spark.sql, "functions")
