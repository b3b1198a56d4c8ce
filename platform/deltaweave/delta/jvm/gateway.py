"""Conversions between Python and the JVM: Scala collections, plans and expressions.

Every function here makes a fixed number of py4j calls, or one per column or clause of a statement:
never one per file or row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass, is_instance_of
from pyspark.sql import Column, DataFrame

from deltaweave.delta.jvm.argument_checks import check_has_delta
from deltaweave.tested_releases import Release, check_jar, check_pair, line

if TYPE_CHECKING:
    import numpy
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

JavaObject: TypeAlias = Any

_PIECE = 4_000  # characters; each may be escaped

_NAMES: WeakKeyDictionary[SparkContext, _Names] = WeakKeyDictionary()
_RELEASES: WeakKeyDictionary[SparkContext, tuple[str, str]] = WeakKeyDictionary()


class _Names:
    """Packages and classes of a JVM by their names.

    py4j's own view asks the JVM about each part of a dotted name, every time. That was a third of
    the calls of a merge. Here, a part that begins with a capital letter or contains a `$` is a
    class.
    """

    def __init__(self, client: Any, name: str, singletons: dict[str, JavaObject]) -> None:
        self._client, self._name, self._singletons = client, name, singletons

    def __getattr__(self, part: str) -> Any:
        if part.startswith("__"):
            raise AttributeError(part)
        name = f"{self._name}.{part}" if self._name else part
        if part[0].isupper() or "$" in part:
            return JavaClass(name, self._client)
        return _Names(self._client, name, self._singletons)


def jvm(spark: SparkSession) -> JavaObject:
    """The session's JVM, by package; checks the Spark and Delta versions on first use."""
    context = spark.sparkContext
    if context not in _NAMES:
        gateway: Any = context._gateway
        names = _Names(gateway._gateway_client, "", {})
        found = _running(spark, names)
        check_pair(*found)
        check_jar(spark.version, _jar(names))
        _NAMES[context], _RELEASES[context] = names, found
    return _NAMES[context]


def running_releases(spark: SparkSession) -> tuple[str, str]:
    """The releases of Spark and Delta that the session runs; both are checked, as by `jvm`."""
    jvm(spark)
    return _RELEASES[spark.sparkContext]


def spark_line(spark: SparkSession) -> Release:
    """Major and minor number of the session's Spark, e.g. (4, 2)."""
    return line(running_releases(spark)[0])


def delta_line(spark: SparkSession) -> Release:
    """Major and minor number of the session's Delta, e.g. (4, 4)."""
    return line(running_releases(spark)[1])


def _running(spark: SparkSession, view: JavaObject) -> tuple[str, str]:
    check_has_delta(spark, is_on_classpath=_is_on_classpath(spark))
    return spark.version, str(singleton(view.io.delta, "package").VERSION())


def _jar(view: JavaObject) -> str:
    """Where Delta's classes are from; empty if the JVM does not say."""
    source = singleton(view.io.delta, "package").getClass().getProtectionDomain().getCodeSource()
    return "" if source is None else str(source.getLocation())


def _is_on_classpath(spark: SparkSession) -> bool:
    # py4j's view asks the JVM, and hands out a package for any name it cannot resolve.
    view: Any = spark.sparkContext._jvm
    return isinstance(view.org.apache.spark.sql.delta.DeltaLog, JavaClass)


def singleton(package: JavaObject, name: str) -> JavaObject:
    """The instance of a Scala `object`, e.g. `singleton(jvm.org.apache.spark.sql.delta, "X")`."""
    if isinstance(package, JavaClass):  # an object within an object
        return getattr(getattr(package, f"{name}$"), "MODULE$")
    known, full_name = package._singletons, f"{package._name}.{name}$"
    if full_name not in known:
        known[full_name] = getattr(getattr(package, f"{name}$"), "MODULE$")
    return known[full_name]


def seq(view: JavaObject, items: Iterable[Any]) -> JavaObject:
    """A Scala immutable Seq of a few items (one py4j call each)."""
    collected = view.java.util.ArrayList()
    for item in items:
        collected.add(item)
    return seq_of(view, collected)


def seq_of(view: JavaObject, items: JavaObject) -> JavaObject:
    """A Scala immutable Seq of a Java list of any length."""
    return view.scala.jdk.javaapi.CollectionConverters.asScala(items).toSeq()


def java_list(view: JavaObject, scala_seq: JavaObject) -> JavaObject:
    """A Java list of a Scala Seq of any length."""
    return view.scala.jdk.javaapi.CollectionConverters.asJava(scala_seq)


def option(view: JavaObject, value: Any) -> JavaObject:
    """A Scala Option: None becomes scala.None."""
    return view.scala.Option.apply(value)


def scala_map(view: JavaObject, items: Mapping[str, Any]) -> JavaObject:
    """A Scala immutable Map of a few items."""
    java_map = view.java.util.HashMap()
    for key, value in items.items():
        java_map.put(key, value)
    return scala_map_of(view, java_map)


def scala_map_of(view: JavaObject, java_map: JavaObject) -> JavaObject:
    """A Scala immutable Map of a Java map of any size."""
    return view.scala.jdk.javaapi.CollectionConverters.asScala(java_map).toMap(_same(view))


def map_of_pairs(view: JavaObject, keys: JavaObject, values: JavaObject) -> JavaObject:
    """A Scala immutable Map of two Seqs of the same length."""
    return keys.zip(values).toMap(_same(view))


def _same(view: JavaObject) -> JavaObject:
    """Scala's proof that pairs are pairs."""
    return singleton(view.scala, "$less$colon$less").refl()


def iterate(scala_seq: JavaObject) -> Iterator[JavaObject]:
    """The items of a short Scala collection (columns, clauses): two py4j calls each."""
    iterator = scala_seq.iterator()
    while iterator.hasNext():
        yield iterator.next()


def function(spark: SparkSession, owner: JavaObject, method: str) -> JavaObject:
    """A Scala function that calls a method of its argument; the method takes none.

    `map` with it takes one py4j call, however long the sequence is.

    Args:
        spark: The session.
        owner: The Java class that has the method.
        method: The method's name.
    """
    gateway: Any = spark.sparkContext._gateway
    no_types = gateway.new_array(jvm(spark).java.lang.Class, 0)
    return _as_function(
        jvm(spark), owner, _lookup(spark).unreflect(owner.getMethod(method, no_types))
    )


def function_of_text(
    spark: SparkSession, owner: JavaObject, method: str, first: JavaObject
) -> JavaObject:
    """A Scala function that gives its argument, a text, to a method as the second argument.

    Args:
        spark: The session.
        owner: The object that has the method.
        method: The method's name.
        first: The method's first argument.
    """
    gateway: Any = spark.sparkContext._gateway
    types = gateway.new_array(jvm(spark).java.lang.Class, 2)
    types[0], types[1] = first.getClass(), jvm(spark).java.lang.Class.forName("java.lang.String")
    found = _lookup(spark).unreflect(owner.getClass().getMethod(method, types))
    return _as_function(jvm(spark), owner.getClass(), found.bindTo(owner).bindTo(first))


def instances_of(spark: SparkSession, owner: JavaObject) -> JavaObject:
    """A Scala predicate that is true for the instances of a Java class."""
    gateway: Any = spark.sparkContext._gateway
    view = jvm(spark)
    any_object = gateway.new_array(view.java.lang.Class, 1)
    any_object[0] = view.java.lang.Class.forName("java.lang.Object")
    found = _lookup(spark).unreflect(owner.getClass().getMethod("isInstance", any_object))
    return _as_function(view, owner, found.bindTo(owner))


def _lookup(spark: SparkSession) -> JavaObject:
    return jvm(spark).java.lang.invoke.MethodHandles.publicLookup()


def _as_function(view: JavaObject, owner: JavaObject, handle: JavaObject) -> JavaObject:
    kind = owner.getClassLoader().loadClass("scala.Function1")
    return view.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(kind, handle)


def texts(view: JavaObject, items: Sequence[str]) -> JavaObject:
    """A Scala immutable Seq of one-line texts, at least one; four py4j calls for any number."""
    lines = view.java.util.regex.Pattern.compile("\n").splitAsStream("\n".join(items))
    return seq_of(view, lines.toList())


def text_of(buffer: JavaObject) -> str:
    """The text of a Java StringBuffer, read in pieces.

    py4j sends an answer in parts of 8 KiB. The second part of a longer answer waits 40 ms, because
    the socket holds it back until the first is acknowledged.
    """
    pieces, start, length = [], 0, buffer.length()
    while start < length:
        end = min(start + _PIECE, length)
        if end < length and buffer.codePointCount(end - 1, end + 1) == 1:
            end -= 1  # between the two halves of a character
        pieces.append(buffer.substring(start, end))
        start = end
    return "".join(pieces)


def place_of(view: JavaObject, attributes: JavaObject, attribute: JavaObject) -> int:
    """The place of an attribute, by its id, in a Scala Seq of them; -1 where it is not there."""
    expressions = view.org.apache.spark.sql.catalyst.expressions
    indexed = getattr(expressions, "package$AttributeSeq")(attributes)
    return int(indexed.indexOf(attribute.exprId()))


def select_where(view: JavaObject, scala_seq: JavaObject, mask: numpy.ndarray) -> JavaObject:
    """The items of a Scala Seq where the boolean mask of the same length is true.

    Five py4j calls however long the sequence is: the mask travels as the bytes of a bit set, and a
    Scala Vector is itself the function from index to item that `map` wants.
    """
    import numpy as np

    bits = np.packbits(mask, bitorder="little").tobytes()
    indexes = view.java.util.BitSet.valueOf(bits).stream().boxed().toList()
    return seq_of(view, indexes).map(scala_seq.toVector())


def data_frame(spark: SparkSession, java_data_frame: JavaObject) -> DataFrame:
    """A PySpark DataFrame over a JVM one."""
    return DataFrame(java_data_frame, spark)


def is_a(spark: SparkSession, java_object: JavaObject, class_name: str) -> bool:
    """Whether an object is of a JVM class, by its full name, or of one that extends it."""
    return bool(is_instance_of(spark.sparkContext._gateway, java_object, class_name))


def compute(rows: DataFrame) -> int:
    """Compute every column of every row, keep nothing, and return the number of rows.

    The sink "noop" would do the same, but Delta 4.4 cannot read tables with deletion vectors into
    sinks of Spark's data source V2.
    """
    return int(rows._jdf.queryExecution().toRdd().count())


def plan_text(rows: DataFrame) -> str:
    """The plans of a query, from parsed to physical, as Spark prints them."""
    return str(rows._jdf.queryExecution().toString())


def data_frame_of_plan(spark: SparkSession, plan: JavaObject) -> DataFrame:
    """A DataFrame whose logical plan is `plan`; it keeps the attribute ids."""
    dataset = singleton(jvm(spark).org.apache.spark.sql.classic, "Dataset")
    return DataFrame(dataset.ofRows(spark._jsparkSession, plan), spark)


def column_of(spark: SparkSession, expression: JavaObject) -> Column:
    """A Column that evaluates a resolved Catalyst expression as it is."""
    view = jvm(spark)
    node = singleton(view.org.apache.spark.sql.classic, "ExpressionColumnNode").apply(expression)
    return Column(view.org.apache.spark.sql.Column(node))


def expression_of(spark: SparkSession, column: Column) -> JavaObject:
    """The Catalyst expression behind a Column; names in it are still unresolved."""
    node = column._jc.node()  # type: ignore[operator]
    return spark._jsparkSession.converter().apply(node)
