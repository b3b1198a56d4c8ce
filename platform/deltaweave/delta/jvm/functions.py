"""Scala and Java functions that call a method: one py4j call applies them to a whole collection."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from deltaweave.delta.jvm.gateway import jvm, seq, seq_of, text_of
from deltaweave.delta.jvm.names import JavaObject, singleton

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"

_MADE: WeakKeyDictionary[SparkContext, dict[str, JavaObject]] = WeakKeyDictionary()


def made_once(spark: SparkSession, name: str, make: Callable[[], JavaObject]) -> JavaObject:
    """Return an object of the JVM that is the same for all sessions of a SparkContext.

    Args:
        spark: A session.
        name: What distinguishes the object from others.
        make: Makes it, the first time.
    """
    known = _MADE.setdefault(spark.sparkContext, {})
    if name not in known:
        known[name] = make()
    return known[name]


def class_of_delta(spark: SparkSession, name: str) -> JavaObject:
    """Return the Java class with this full name, as Delta's classes see it.

    Delta's own class loader finds it, even if its jars were added to a running JVM.
    """

    def load() -> JavaObject:
        util = jvm(spark).org.apache.spark.sql.delta.util
        return singleton(util, "JsonUtils").getClass().getClassLoader().loadClass(name)

    return made_once(spark, f"class {name}", load)


def function(spark: SparkSession, owner: str, method: str) -> JavaObject:
    """Build a Scala function that calls a method of its argument; the method takes none.

    Args:
        spark: The session.
        owner: The full name of the Java class that has the method.
        method: The method's name.
    """

    def make() -> JavaObject:
        found = class_of_delta(spark, owner).getMethod(method, _types(spark))
        return _as(spark, "scala.Function1", _lookup(spark).unreflect(found))

    return made_once(spark, f"{owner}.{method}", make)


def json_of(
    spark: SparkSession, owner: str, method: str, objects: Sequence[JavaObject]
) -> list[Any]:
    """Call a method without arguments on each object; return the parsed JSON of any length.

    Args:
        spark: The session.
        owner: The full name of the Java class that has the method.
        method: The method's name.
        objects: The objects.
    """
    view = jvm(spark)
    text = view.java.lang.StringBuilder()
    texts = seq(view, objects).map(function(spark, owner, method))
    texts.addString(view.scala.collection.mutable.StringBuilder(text), "[", ",", "]")
    return list(json.loads(text_of(text)))


def static_function(spark: SparkSession, owner: str, method: str) -> JavaObject:
    """Build a Scala function that passes its argument, a text, to a static Java method."""

    def make() -> JavaObject:
        text = class_of_delta(spark, "java.lang.String")
        found = class_of_delta(spark, owner).getMethod(method, _types(spark, text))
        return _as(spark, "scala.Function1", _lookup(spark).unreflect(found))

    return made_once(spark, f"{owner}.{method} of a text", make)


def function_of_text(
    spark: SparkSession, owner: JavaObject, method: str, first: JavaObject
) -> JavaObject:
    """Build a Scala function that passes its argument, a text, to a method as second argument.

    Args:
        spark: The session.
        owner: The object that has the method.
        method: The method's name.
        first: The method's first argument.
    """
    text = class_of_delta(spark, "java.lang.String")
    found = owner.getClass().getMethod(method, _types(spark, first.getClass(), text))
    handle = _lookup(spark).unreflect(found).bindTo(owner).bindTo(first)
    return _as(spark, "scala.Function1", handle)


def nodes_within(spark: SparkSession, trees: JavaObject) -> JavaObject:
    """Return all nodes of Spark's trees (plans or expressions), as a Scala Seq.

    Args:
        spark: The session.
        trees: The trees, a Scala collection.
    """
    view = jvm(spark)
    found = view.java.util.ArrayList()
    anything = class_of_delta(spark, "java.lang.Object")
    add = _lookup(spark).unreflect(found.getClass().getMethod("add", _types(spark, anything)))
    note = _as(spark, "scala.Function1", add.bindTo(found))
    kind = class_of_delta(spark, "scala.Function1")
    visit = class_of_delta(spark, _TREE).getMethod("foreach", _types(spark, kind))
    gateway: Any = spark.sparkContext._gateway
    bound = gateway.new_array(view.java.lang.Object, 1)
    bound[0] = note
    handle = _lookup(spark).unreflect(visit)
    visit_with = view.java.lang.invoke.MethodHandles.insertArguments(handle, 1, bound)
    trees.foreach(_as(spark, "scala.Function1", visit_with))
    return seq_of(view, found)


def expressions_within(spark: SparkSession, plans: JavaObject) -> JavaObject:
    """Return all nodes of the expressions of plans, without those of their children.

    Args:
        spark: The session.
        plans: The plans, a Scala Seq.
    """
    of_plan = function(spark, "org.apache.spark.sql.catalyst.plans.QueryPlan", "expressions")
    return nodes_within(spark, plans.flatMap(of_plan))


def class_names(spark: SparkSession, objects: JavaObject) -> set[str]:
    """Return the full names of the classes of a Scala Seq of objects, without a `$` at the end."""
    classes = objects.map(function(spark, "java.lang.Object", "getClass")).distinct()
    names = classes.map(function(spark, "java.lang.Class", "getName")).mkString("\n")
    return {name.removesuffix("$") for name in str(names).split("\n")} - {""}


def setter(spark: SparkSession, owner: str, method: str, value: JavaObject) -> JavaObject:
    """Build a Java BiConsumer that passes its second argument to a method of the first.

    Args:
        spark: The session.
        owner: The full name of the Java class that has the method.
        method: The method's name.
        value: The Java class of what the method takes.
    """
    found = class_of_delta(spark, owner).getMethod(method, _types(spark, value))
    return _as(spark, "java.util.function.BiConsumer", _lookup(spark).unreflect(found))


def instances_of(spark: SparkSession, owner: JavaObject) -> JavaObject:
    """Build a Scala predicate that is true for the instances of a Java class."""
    anything = _types(spark, class_of_delta(spark, "java.lang.Object"))
    found = _lookup(spark).unreflect(owner.getClass().getMethod("isInstance", anything))
    return _as(spark, "scala.Function1", found.bindTo(owner))


def _types(spark: SparkSession, *types: JavaObject) -> JavaObject:
    gateway: Any = spark.sparkContext._gateway
    listed = gateway.new_array(jvm(spark).java.lang.Class, len(types))
    for place, each in enumerate(types):
        listed[place] = each
    return listed


def _lookup(spark: SparkSession) -> JavaObject:
    return jvm(spark).java.lang.invoke.MethodHandles.publicLookup()


def _as(spark: SparkSession, interface: str, handle: JavaObject) -> JavaObject:
    kind = class_of_delta(spark, interface)
    return jvm(spark).java.lang.invoke.MethodHandleProxies.asInterfaceInstance(kind, handle)
