"""Conversions between Python and the JVM: Scala collections, plans and expressions.

Every function here makes a fixed number of py4j calls, or one per column or clause of a statement:
never one per file or row. Of `text_of`, the length of the text decides, up to 60.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass, is_instance_of
from pyspark.sql import Column, DataFrame

from deltaweave.delta.jvm.argument_checks import check_has_delta
from deltaweave.delta.jvm.names import JavaObject, Names, singleton
from deltaweave.tested_releases import Release, check_jar, check_pair, line

if TYPE_CHECKING:
    import numpy
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Characters. Each is of three bytes at most, or escaped as two, and a part of an answer has 8 KiB.
_PIECE = 2_700
# An answer of more parts than the socket holds back (64 KiB and one part) does not wait.
_WHOLE = 80_000

_NAMES: WeakKeyDictionary[SparkContext, Names] = WeakKeyDictionary()
_RELEASES: WeakKeyDictionary[SparkContext, tuple[str, str]] = WeakKeyDictionary()


def jvm(spark: SparkSession) -> JavaObject:
    """Return the session's JVM, by package; check the Spark and Delta versions on first use."""
    context = spark.sparkContext
    if context not in _NAMES:
        gateway: Any = context._gateway
        names = Names(gateway._gateway_client)
        found = _running(spark, names)
        check_pair(*found)
        check_jar(spark.version, _jar(names))
        _NAMES[context], _RELEASES[context] = names, found
    return _NAMES[context]


def running_releases(spark: SparkSession) -> tuple[str, str]:
    """Return the releases of Spark and Delta that the session runs; check both, as `jvm` does."""
    jvm(spark)
    return _RELEASES[spark.sparkContext]


def spark_line(spark: SparkSession) -> Release:
    """Return major and minor number of the session's Spark, e.g. (4, 2)."""
    return line(running_releases(spark)[0])


def delta_line(spark: SparkSession) -> Release:
    """Return major and minor number of the session's Delta, e.g. (4, 4)."""
    return line(running_releases(spark)[1])


def _running(spark: SparkSession, view: JavaObject) -> tuple[str, str]:
    check_has_delta(spark, is_on_classpath=_is_on_classpath(spark))
    return spark.version, str(singleton(view.io.delta, "package").VERSION())


def _jar(view: JavaObject) -> str:
    """Return where Delta's classes are from; empty if the JVM does not say."""
    source = singleton(view.io.delta, "package").getClass().getProtectionDomain().getCodeSource()
    return "" if source is None else str(source.getLocation())


def _is_on_classpath(spark: SparkSession) -> bool:
    # py4j's view asks the JVM, and hands out a package for any name it cannot resolve.
    view: Any = spark.sparkContext._jvm
    return isinstance(view.org.apache.spark.sql.delta.DeltaLog, JavaClass)


def seq(view: JavaObject, items: Iterable[Any]) -> JavaObject:
    """Build a Scala immutable Seq of a few items (one py4j call each)."""
    collected = singleton(view.scala.collection.immutable, "Nil")
    for item in reversed(list(items)):
        collected = collected.prepended(item)
    return collected


def seq_of(view: JavaObject, items: JavaObject) -> JavaObject:
    """Build a Scala immutable Seq of a Java list of any length."""
    return scala_buffer(view, items).toSeq()


def scala_buffer(view: JavaObject, items: JavaObject) -> JavaObject:
    """View a Java list of any length as a Scala Buffer."""
    return view.scala.jdk.javaapi.CollectionConverters.asScala(items)


def java_list(view: JavaObject, scala_seq: JavaObject) -> JavaObject:
    """View a Scala Seq of any length as a Java list."""
    return view.scala.jdk.javaapi.CollectionConverters.asJava(scala_seq)


def java_map(view: JavaObject, items: JavaObject) -> JavaObject:
    """View a Scala Map of any size as a Java map."""
    return view.scala.jdk.javaapi.CollectionConverters.asJava(items)


def option(view: JavaObject, value: Any) -> JavaObject:
    """Build a Scala Option: None becomes scala.None."""
    return singleton(view.scala, "None") if value is None else view.scala.Option.apply(value)


def scala_map(view: JavaObject, items: Mapping[str, Any]) -> JavaObject:
    """Build a Scala immutable Map of a few items."""
    if not items:
        return singleton(view.scala.collection.immutable, "Map$EmptyMap")
    collected = view.java.util.HashMap()
    for key, value in items.items():
        collected.put(key, value)
    return scala_map_of(view, collected)


def scala_map_of(view: JavaObject, items: JavaObject) -> JavaObject:
    """Build a Scala immutable Map of a Java map of any size."""
    return _map_from(view, view.scala.jdk.javaapi.CollectionConverters.asScala(items))


def map_of_pairs(view: JavaObject, keys: JavaObject, values: JavaObject) -> JavaObject:
    """Build a Scala immutable Map of two sequences of equal length; keys are an immutable Seq."""
    return _map_from(view, keys.zip(values))


def _map_from(view: JavaObject, pairs: JavaObject) -> JavaObject:
    # "from" is a keyword of Python.
    return getattr(singleton(view.scala.collection.immutable, "Map"), "from")(pairs)


def iterate(scala_seq: JavaObject) -> Iterator[JavaObject]:
    """Yield the items of a short Scala collection (columns, clauses): a py4j call each."""
    if number := scala_seq.size():
        iterator = scala_seq.iterator()
        for _ in range(number):
            yield iterator.next()


def texts(view: JavaObject, items: Sequence[str]) -> JavaObject:
    """Build a Scala immutable Seq of one-line texts, at least one, in four py4j calls."""
    lines = view.java.util.regex.Pattern.compile("\n").splitAsStream("\n".join(items))
    return seq_of(view, lines.toList())


def text_of(buffer: JavaObject) -> str:
    """Read the text of a Java StringBuffer or StringBuilder in pieces.

    py4j sends an answer in parts of 8 KiB. The second part of a longer answer waits 40 ms, because
    the socket holds it back until the first is acknowledged or there is a segment of 64 KiB.
    """
    length = buffer.length()
    if length > _WHOLE:
        return str(buffer.toString())
    pieces, start = [], 0
    while start < length:
        end = min(start + _PIECE, length)
        if end < length and buffer.codePointCount(end - 1, end + 1) == 1:
            end -= 1  # between the two halves of a character
        pieces.append(buffer.substring(start, end))
        start = end
    return "".join(pieces)


def place_of(view: JavaObject, attributes: JavaObject, attribute: JavaObject) -> int:
    """Return the index of an attribute, by its id, in a Scala Seq of them; -1 if missing."""
    expressions = view.org.apache.spark.sql.catalyst.expressions
    indexed = getattr(expressions, "package$AttributeSeq")(attributes)
    return int(indexed.indexOf(attribute.exprId()))


def select_where(view: JavaObject, scala_seq: JavaObject, mask: numpy.ndarray) -> JavaObject:
    """Select the items of a Scala Seq where the boolean mask of the same length is true.

    Five py4j calls however long the sequence is: the mask travels as the bytes of a bit set, and a
    Scala Vector is itself the function from index to item that `map` wants.
    """
    import numpy as np

    bits = np.packbits(mask, bitorder="little").tobytes()
    indexes = view.java.util.BitSet.valueOf(bits).stream().boxed().toList()
    return seq_of(view, indexes).map(scala_seq.toVector())


def data_frame(spark: SparkSession, java_data_frame: JavaObject) -> DataFrame:
    """Wrap a JVM DataFrame as a PySpark one."""
    return DataFrame(java_data_frame, spark)


def is_a(spark: SparkSession, java_object: JavaObject, class_name: str) -> bool:
    """Return whether an object is of a JVM class, given by full name, or of a subclass."""
    return bool(is_instance_of(spark.sparkContext._gateway, java_object, class_name))


def plan_text(rows: DataFrame) -> str:
    """Return the plans of a query, from parsed to physical, as Spark prints them."""
    return str(rows._jdf.queryExecution().toString())


def data_frame_of_plan(spark: SparkSession, plan: JavaObject) -> DataFrame:
    """Build a DataFrame whose logical plan is `plan`; it keeps the attribute ids."""
    dataset = singleton(jvm(spark).org.apache.spark.sql.classic, "Dataset")
    return DataFrame(dataset.ofRows(spark._jsparkSession, plan), spark)


def column_of(spark: SparkSession, expression: JavaObject) -> Column:
    """Build a Column that evaluates a resolved Catalyst expression as it is."""
    view = jvm(spark)
    node = singleton(view.org.apache.spark.sql.classic, "ExpressionColumnNode").apply(expression)
    return Column(view.org.apache.spark.sql.Column(node))


def expression_of(spark: SparkSession, column: Column) -> JavaObject:
    """Return the Catalyst expression behind a Column; names in it are still unresolved."""
    node = column._jc.node()  # type: ignore[operator]
    return spark._jsparkSession.converter().apply(node)
