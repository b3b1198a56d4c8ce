"""Days that Spark's filters on Parquet files lack, and conditions that may hold one.

Spark hands dates and times to Parquet as `java.sql.Date` and `java.sql.Timestamp`. These lack some
days (the lost days), and each of them becomes a later one: a scan with such a filter skips row
groups that hold the row. So rows may be overlooked wherever a condition, or what Spark derives from
the source's query, compares a column with such a day. The calendar lacks 5 to 14 October 1582, and
dates also lack a day that the JVM's time zone skipped, as Samoa's did 30 December 2011.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, DateType, StructType, TimestampType

from deltaweave.delta.jvm import JavaObject, Jvm, has_local_master, is_on, reported_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_MONTH = "1582-10-"
# As java.time prints where clocks were put forward in a zone.
_GAP = re.compile(r"Gap at (\d{4}-\d\d-\d\dT[\d:]+)([+-][\d:]+) to ([+-][\d:]+)")
_WITH_NEW_DATES = "spark.sql.datetime.java8API.enabled"
# By the name of a zone, the days that its clocks passed over.
_SKIPPED: dict[str, frozenset[date]] = {}
_PLAN = "org.apache.spark.sql.catalyst.plans.QueryPlan"
_LITERAL = "org.apache.spark.sql.catalyst.expressions.Literal"
_LOGICAL_PLAN = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"


def may_lose_days(kind: DataType) -> bool:
    """Return whether a column of this type may be compared with such days by Parquet."""
    if isinstance(kind, StructType):
        return any(may_lose_days(field.dataType) for field in kind.fields)
    return isinstance(kind, (DateType, TimestampType))


def names_lost_days(spark: SparkSession, node: JavaObject) -> bool:
    """Return whether a constant of the statement or of the source's query may be a lost day.

    If a constant cannot be computed, it may be.
    """
    if is_on(spark, _WITH_NEW_DATES, otherwise=False):
        return False
    try:
        lost = (_MONTH, *map(date.isoformat, days_skipped_by_zone(spark)))
        texts = (str(each.mkString(" ")) for each in _constants(spark, node))
        return any(day in text for text in texts for day in lost)
    except Exception as error:
        logger.debug("the constants of a statement are not known: %s", reported_by(error))
        return True


def executors_may_shift_days(spark: SparkSession) -> bool:
    """Return whether executors are JVMs of their own, and read days by a time zone of their own."""
    return not (has_local_master(spark) or is_on(spark, _WITH_NEW_DATES, otherwise=False))


def days_skipped_by_zone(spark: SparkSession) -> frozenset[date]:
    """Return the days that `java.sql.Date` lacks in the default time zone of the JVM.

    Of the days on whose midnight clocks were put forward, Spark's own conversions are asked.
    """
    jvm = Jvm.of(spark)
    zone = jvm.java.util.TimeZone.getDefault()
    name = str(zone.getID())
    if name not in _SKIPPED:
        conversions = Jvm.singleton(jvm.catalyst.util, "DateTimeUtils")
        transitions = str(zone.toZoneId().getRules().getTransitions().toString())
        _SKIPPED[name] = frozenset(
            day
            for day in skipped_midnights(transitions)
            for number in [(day - date(1970, 1, 1)).days]
            if conversions.fromJavaDate(conversions.toJavaDate(number)) != number
        )
    return _SKIPPED[name]


def skipped_midnights(transitions: str) -> Iterator[date]:
    """Yield the days whose midnight is in a gap of a zone's transitions, as java.time prints them.

    It prints the offset of UTC as Z, which Python 3.10 does not read.
    """
    for start, before, after in _GAP.findall(transitions.replace("Z", "+00:00")):
        began = datetime.fromisoformat(start)
        length = datetime.fromisoformat(start + before) - datetime.fromisoformat(start + after)
        day = began.date() if began.time() == time.min else began.date() + timedelta(days=1)
        while datetime.combine(day, time.min) < began + length:
            yield day
            day += timedelta(days=1)


def may_filter_by_lost_days(spark: SparkSession, node: JavaObject) -> bool:
    """Return whether Spark may compare a column with such a day.

    Spark also filters by the values of scalar subqueries, which are known at run time alone.
    """
    if is_on(spark, _WITH_NEW_DATES, otherwise=False):
        return False
    return _has_subquery(spark, node) or names_lost_days(spark, node)


def may_filter_by_decimals(spark: SparkSession, node: JavaObject) -> bool:
    """Return whether Spark may compare a column with a constant of type DECIMAL."""
    if _has_subquery(spark, node):
        return True
    jvm = Jvm.of(spark)
    data_type = jvm.function("org.apache.spark.sql.catalyst.expressions.Expression", "dataType")
    is_constant = jvm.instances_of(jvm.class_of_delta(_LITERAL))
    for each in _constants(spark, node):
        types = jvm.nodes_within(each).filter(is_constant).map(data_type)
        if "DecimalType(" in str(types.mkString(" ")):
            return True
    return False


def _has_subquery(spark: SparkSession, node: JavaObject) -> bool:
    subquery = Jvm.of(spark).catalyst.trees.TreePattern.PLAN_EXPRESSION()
    return bool(node.containsPattern(subquery) or node.source().containsPattern(subquery))


def _constants(spark: SparkSession, node: JavaObject) -> Iterator[JavaObject]:
    """Yield Scala Seqs of the expressions with constants, computed as far as they can be."""
    jvm = Jvm.of(spark)
    fold = Jvm.singleton(jvm.catalyst.optimizer, "ConstantFolding")
    yield jvm.nodes_within(fold.apply(node).expressions())
    source = fold.apply(node.source())
    nodes = jvm.nodes_within(jvm.seq([source]))
    yield nodes.flatMap(jvm.function(_PLAN, "expressions"))
    # A checkpoint does not show its query, but what holds of its rows.
    yield source.collectLeaves().flatMap(jvm.function(_LOGICAL_PLAN, "constraints"))
