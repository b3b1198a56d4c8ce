"""The JVM of a session: names, Scala collections, plans, expressions, and functions of the JVM.

Arguments that are not a session with Delta, a DataFrame or a name are refused here.

Every method here makes a fixed number of py4j calls, or one per column or clause of a statement:
never one per file or row. Of `Jvm.text_of`, the length of the text decides, up to 60.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass, JavaMember, is_instance_of
from pyspark.sql import Column, DataFrame, SparkSession

from deltaweave import errors
from deltaweave._session import DELTA_SETTINGS, Release, check_jar, check_pair, delta_conf, line

if TYPE_CHECKING:
    import numpy
    from pyspark import SparkContext


JavaObject: TypeAlias = Any
"""An object of the JVM whose kind does not matter, or that Python calls."""

_EXTENSIONS = "spark.sql.extensions"
_CATALOG = "spark.sql.catalog.spark_catalog"
_FROM_ROWS = "Make one of them: spark.createDataFrame(rows)."
_HINTS = {
    "pandas": _FROM_ROWS,
    "pyarrow": _FROM_ROWS,
    "polars": "Make one of them: spark.createDataFrame(rows.to_arrow()).",
    "delta": "Give the rows of the table: table.toDF().",
    "builtins": "Give a DataFrame of the session, e.g. spark.table(name) or "
    "spark.createDataFrame(rows).",
}

_TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"
# Characters. Each is of three bytes at most, or escaped as two, and a part of an answer has 8 KiB.
_PIECE = 2_700
# An answer of more parts than the socket holds back (64 KiB and one part) does not wait.
_WHOLE = 80_000

# What is known of the JVM of each SparkContext, for all of its sessions.
NAMES: WeakKeyDictionary[SparkContext, Names] = WeakKeyDictionary()
_RELEASES: WeakKeyDictionary[SparkContext, tuple[str, str]] = WeakKeyDictionary()
_MADE: WeakKeyDictionary[SparkContext, dict[str, JavaObject]] = WeakKeyDictionary()


class _Handle:
    """An object of the JVM of one kind, which mypy keeps apart from others."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class DeltaLog(_Handle):
    """Delta's log of a table (`DeltaLog`)."""


class DeltaSnapshot(_Handle):
    """Delta's snapshot of a version (`Snapshot`)."""


class DeltaTransaction(_Handle):
    """Delta's transaction (`OptimisticTransaction`)."""


class DeltaMetadata(_Handle):
    """Delta's action of a table's columns and properties (`Metadata`)."""


class Plan(_Handle):
    """A plan of Spark (`LogicalPlan`)."""


class Expression(_Handle):
    """An expression of Spark (`Expression`)."""


class Names:
    """A package of a JVM; the root has the empty name.

    py4j's own view asks the JVM about each part of a dotted name, every time. That was a third of
    the calls of a merge. Here, a part that begins with a capital letter or contains a `$` is a
    class.
    """

    def __init__(self, client: Any, name: str = "", known: dict[str, Any] | None = None) -> None:
        self._client, self._name = client, name
        self._known: dict[str, Any] = {} if known is None else known

    def __getattr__(self, part: str) -> Any:
        if part.startswith("__"):
            raise AttributeError(part)
        name = f"{self._name}.{part}" if self._name else part
        if part[0].isupper() or "$" in part:
            if name not in self._known:
                self._known[name] = _Class(name, self._client)
            return self._known[name]
        return Names(self._client, name, self._known)


class _Class(JavaClass):  # type: ignore[misc]
    """A class whose static methods and inner classes are asked for once.

    What a static field holds is asked for each time.
    """

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaClass):
            found = _Class(found._fqn, self._gateway_client)
        if isinstance(found, (JavaMember, JavaClass)):
            self.__dict__[name] = found
        return found


class Jvm:
    """The JVM as a session sees it: `Jvm.of(spark)`."""

    __slots__ = ("_names", "spark")

    def __init__(self, spark: SparkSession, names: Names) -> None:
        self.spark, self._names = spark, names

    @classmethod
    def of(cls, spark: SparkSession) -> Jvm:
        """Return the session's JVM; check the Spark and Delta versions on first use."""
        context = spark.sparkContext
        if context not in NAMES:
            gateway: Any = context._gateway
            names = Names(gateway._gateway_client)
            found = _running(spark, names)
            check_pair(*found)
            check_jar(spark.version, delta_jar(names))
            NAMES[context], _RELEASES[context] = names, found
        return cls(spark, NAMES[context])

    @property
    def io(self) -> Names:
        """The package `io`."""
        return self._package("io")

    @property
    def java(self) -> Names:
        """The package `java`."""
        return self._package("java")

    @property
    def org(self) -> Names:
        """The package `org`."""
        return self._package("org")

    @property
    def scala(self) -> Names:
        """The package `scala`."""
        return self._package("scala")

    def _package(self, name: str) -> Names:
        found: Names = getattr(self._names, name)
        return found

    @property
    def sql(self) -> Names:
        """Spark's package `org.apache.spark.sql`."""
        return Names(self._names._client, "org.apache.spark.sql", self._names._known)

    @property
    def catalyst(self) -> Names:
        """Spark's package `org.apache.spark.sql.catalyst`."""
        return Names(self._names._client, "org.apache.spark.sql.catalyst", self._names._known)

    @property
    def delta(self) -> Names:
        """Delta's package `org.apache.spark.sql.delta`."""
        return Names(self._names._client, "org.apache.spark.sql.delta", self._names._known)

    @property
    def session(self) -> JavaObject:
        """The JVM's own session."""
        return self.spark._jsparkSession

    @property
    def spark_line(self) -> Release:
        """Major and minor number of the session's Spark, e.g. (4, 2)."""
        return line(_RELEASES[self.spark.sparkContext][0])

    @property
    def delta_line(self) -> Release:
        """Major and minor number of the session's Delta, e.g. (4, 4)."""
        return line(_RELEASES[self.spark.sparkContext][1])

    # Objects.

    @staticmethod
    def singleton(package: JavaObject, name: str) -> JavaObject:
        """Return the instance of a Scala `object`: `Jvm.singleton(jvm.delta, "X")`."""
        found = getattr(package, f"{name}$")  # in a class, an object within an object
        if "MODULE$" not in found.__dict__:
            found.__dict__["MODULE$"] = getattr(found, "MODULE$")
        return found.__dict__["MODULE$"]

    def made_once(self, name: str, make: Callable[[], JavaObject]) -> JavaObject:
        """Return an object of the JVM that is the same for all sessions of a SparkContext."""
        known = _MADE.setdefault(self.spark.sparkContext, {})
        if name not in known:
            known[name] = make()
        return known[name]

    def class_of_delta(self, name: str) -> JavaObject:
        """Return the Java class with this full name, as Delta's classes see it.

        Delta's own class loader finds it, even if its jars were added to a running JVM.
        """

        def load() -> JavaObject:
            utils = self.singleton(self.delta.util, "JsonUtils")
            return utils.getClass().getClassLoader().loadClass(name)

        return self.made_once(f"class {name}", load)

    def is_a(self, java_object: JavaObject, class_name: str) -> bool:
        """Return whether an object is of a JVM class, given by full name, or of a subclass."""
        return bool(is_instance_of(self.spark.sparkContext._gateway, java_object, class_name))

    def class_names(self, objects: JavaObject) -> set[str]:
        """Return the full names of the classes of a Scala Seq's objects, without a last `$`."""
        classes = objects.map(self.function("java.lang.Object", "getClass")).distinct()
        names = classes.map(self.function("java.lang.Class", "getName")).mkString("\n")
        return {name.removesuffix("$") for name in str(names).split("\n")} - {""}

    def delta_error(self, name: str, *arguments: Any) -> JavaObject:
        """Build the exception of Delta's `DeltaErrors.name(...)`, in Delta's wording."""
        return getattr(self.singleton(self.delta, "DeltaErrors"), name)(*arguments)

    def zone_rules(self, session: JavaObject) -> JavaObject:
        """Return the java.time.zone.ZoneRules of the time zone of one of the JVM's sessions."""
        zone = str(session.sessionState().conf().sessionLocalTimeZone())
        return self.singleton(self.catalyst.util, "DateTimeUtils").getZoneId(zone).getRules()

    # Collections.

    def seq(self, items: Iterable[Any]) -> JavaObject:
        """Build a Scala immutable Seq of a few items (one py4j call each)."""
        collected = self.singleton(self.scala.collection.immutable, "Nil")
        for item in reversed(list(items)):
            collected = collected.prepended(item)
        return collected

    def seq_of(self, items: JavaObject) -> JavaObject:
        """Build a Scala immutable Seq of a Java list of any length."""
        return self.scala_buffer(items).toSeq()

    def scala_buffer(self, items: JavaObject) -> JavaObject:
        """View a Java list of any length as a Scala Buffer."""
        return self.scala.jdk.javaapi.CollectionConverters.asScala(items)

    def java_list(self, scala_seq: JavaObject) -> JavaObject:
        """View a Scala Seq of any length as a Java list."""
        return self.scala.jdk.javaapi.CollectionConverters.asJava(scala_seq)

    def java_map(self, items: JavaObject) -> JavaObject:
        """View a Scala Map of any size as a Java map."""
        return self.scala.jdk.javaapi.CollectionConverters.asJava(items)

    def option(self, value: Any) -> JavaObject:
        """Build a Scala Option: None becomes scala.None."""
        if value is None:
            return self.singleton(self.scala, "None")
        return self.scala.Option.apply(value)

    def scala_map(self, items: Mapping[str, Any]) -> JavaObject:
        """Build a Scala immutable Map of a few items."""
        if not items:
            return self.singleton(self.scala.collection.immutable, "Map$EmptyMap")
        collected = self.java.util.HashMap()
        for key, value in items.items():
            collected.put(key, value)
        return self.scala_map_of(collected)

    def scala_map_of(self, items: JavaObject) -> JavaObject:
        """Build a Scala immutable Map of a Java map of any size."""
        return self._map_from(self.scala.jdk.javaapi.CollectionConverters.asScala(items))

    def map_of_pairs(self, keys: JavaObject, values: JavaObject) -> JavaObject:
        """Build a Scala immutable Map of two sequences of equal length; keys are immutable."""
        return self._map_from(keys.zip(values))

    def _map_from(self, pairs: JavaObject) -> JavaObject:
        # "from" is a keyword of Python.
        return getattr(self.singleton(self.scala.collection.immutable, "Map"), "from")(pairs)

    def texts(self, items: Sequence[str]) -> JavaObject:
        """Build a Scala immutable Seq of one-line texts, at least one, in four py4j calls."""
        lines = self.java.util.regex.Pattern.compile("\n").splitAsStream("\n".join(items))
        return self.seq_of(lines.toList())

    def select_where(self, scala_seq: JavaObject, mask: numpy.ndarray) -> JavaObject:
        """Select the items of a Scala Seq where the boolean mask of the same length is true.

        Five py4j calls however long the sequence is: the mask travels as the bytes of a bit set,
        and a Scala Vector is itself the function from index to item that `map` wants.
        """
        import numpy as np

        bits = np.packbits(mask, bitorder="little").tobytes()
        indexes = self.java.util.BitSet.valueOf(bits).stream().boxed().toList()
        return self.seq_of(indexes).map(scala_seq.toVector())

    @staticmethod
    def iterate(scala_seq: JavaObject) -> Iterator[JavaObject]:
        """Yield the items of a short Scala collection (columns, clauses): a py4j call each."""
        if number := scala_seq.size():
            iterator = scala_seq.iterator()
            for _ in range(number):
                yield iterator.next()

    @staticmethod
    def text_of(buffer: JavaObject) -> str:
        """Read the text of a Java StringBuffer or StringBuilder in pieces.

        py4j sends an answer in parts of 8 KiB. The second part of a longer answer waits 40 ms,
        because the socket holds it back until the first is acknowledged or there is a segment of
        64 KiB.
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

    # Plans and expressions.

    def data_frame(self, java_data_frame: JavaObject) -> DataFrame:
        """Wrap a JVM DataFrame as a PySpark one."""
        return DataFrame(java_data_frame, self.spark)

    def resolved(self, plan: Plan) -> JavaObject:
        """Return a parsed plan after Spark's and Delta's analysis; no command is executed."""
        modes = self.singleton(self.sql.execution, "CommandExecutionMode")
        skip = self.made_once("no execution of commands", modes.SKIP)
        return self.session.sessionState().executePlan(plan, skip).analyzed()

    def data_frame_of_plan(self, plan: Plan) -> DataFrame:
        """Build a DataFrame whose logical plan is `plan`; it keeps the attribute ids."""
        dataset = self.singleton(self.sql.classic, "Dataset")
        return DataFrame(dataset.ofRows(self.session, plan), self.spark)

    def column_of(self, expression: Expression) -> Column:
        """Build a Column that evaluates a resolved Catalyst expression as it is."""
        node = self.singleton(self.sql.classic, "ExpressionColumnNode").apply(expression)
        return Column(self.sql.Column(node))

    def expression_of(self, column: Column) -> JavaObject:
        """Return the Catalyst expression behind a Column; names in it are still unresolved."""
        node = column._jc.node()  # type: ignore[operator]
        return self.session.converter().apply(node)

    def attribute_index(self, attributes: JavaObject, attribute: Expression) -> int:
        """Return the index of an attribute, by its id, in a Scala Seq of them; -1 if missing."""
        indexed = getattr(self.catalyst.expressions, "package$AttributeSeq")(attributes)
        return int(indexed.indexOf(attribute.exprId()))

    def nodes_within(self, trees: JavaObject) -> JavaObject:
        """Return all nodes of Spark's trees (plans or expressions), as a Scala Seq."""
        found = self.java.util.ArrayList()
        anything = self.class_of_delta("java.lang.Object")
        add = self._lookup().unreflect(found.getClass().getMethod("add", self._types(anything)))
        note = self._as("scala.Function1", add.bindTo(found))
        kind = self.class_of_delta("scala.Function1")
        visit = self.class_of_delta(_TREE).getMethod("foreach", self._types(kind))
        gateway: Any = self.spark.sparkContext._gateway
        bound = gateway.new_array(self.java.lang.Object, 1)
        bound[0] = note
        handle = self._lookup().unreflect(visit)
        visit_with = self.java.lang.invoke.MethodHandles.insertArguments(handle, 1, bound)
        trees.foreach(self._as("scala.Function1", visit_with))
        return self.seq_of(found)

    def expressions_within(self, plans: JavaObject) -> JavaObject:
        """Return all nodes of the expressions of plans, without those of their children."""
        of_plan = self.function("org.apache.spark.sql.catalyst.plans.QueryPlan", "expressions")
        return self.nodes_within(plans.flatMap(of_plan))

    # Functions of the JVM: one call applies them to a whole collection.

    def function(self, owner: str, method: str) -> JavaObject:
        """Build a Scala function that calls a method of its argument; the method takes none.

        `owner` is the full name of the Java class that has the method.
        """

        def make() -> JavaObject:
            found = self.class_of_delta(owner).getMethod(method, self._types())
            return self._as("scala.Function1", self._lookup().unreflect(found))

        return self.made_once(f"{owner}.{method}", make)

    def json_of(self, owner: str, method: str, objects: Sequence[JavaObject]) -> list[Any]:
        """Call a method without arguments on each object; return the parsed JSON of any length.

        `owner` is the full name of the Java class that has the method.
        """
        text = self.java.lang.StringBuilder()
        texts = self.seq(objects).map(self.function(owner, method))
        texts.addString(self.scala.collection.mutable.StringBuilder(text), "[", ",", "]")
        return list(json.loads(self.text_of(text)))

    def static_function(self, owner: str, method: str) -> JavaObject:
        """Build a Scala function that passes its argument, a text, to a static Java method."""

        def make() -> JavaObject:
            text = self.class_of_delta("java.lang.String")
            found = self.class_of_delta(owner).getMethod(method, self._types(text))
            return self._as("scala.Function1", self._lookup().unreflect(found))

        return self.made_once(f"{owner}.{method} of a text", make)

    def function_of_text(self, owner: JavaObject, method: str, first: JavaObject) -> JavaObject:
        """Build a Scala function that passes its argument, a text, to a method as the second."""
        text = self.class_of_delta("java.lang.String")
        found = owner.getClass().getMethod(method, self._types(first.getClass(), text))
        handle = self._lookup().unreflect(found).bindTo(owner).bindTo(first)
        return self._as("scala.Function1", handle)

    def setter(self, owner: str, method: str, value: JavaObject) -> JavaObject:
        """Build a Java BiConsumer that passes its second argument to a method of the first.

        `owner` is the full name of the Java class that has the method.
        """
        found = self.class_of_delta(owner).getMethod(method, self._types(value))
        return self._as("java.util.function.BiConsumer", self._lookup().unreflect(found))

    def instances_of(self, owner: JavaObject) -> JavaObject:
        """Build a Scala predicate that is true for the instances of a Java class."""
        anything = self._types(self.class_of_delta("java.lang.Object"))
        found = self._lookup().unreflect(owner.getClass().getMethod("isInstance", anything))
        return self._as("scala.Function1", found.bindTo(owner))

    def _types(self, *types: JavaObject) -> JavaObject:
        gateway: Any = self.spark.sparkContext._gateway
        listed = gateway.new_array(self.java.lang.Class, len(types))
        for index, each in enumerate(types):
            listed[index] = each
        return listed

    def _lookup(self) -> JavaObject:
        return self.java.lang.invoke.MethodHandles.publicLookup()

    def _as(self, interface: str, handle: JavaObject) -> JavaObject:
        kind = self.class_of_delta(interface)
        return self.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(kind, handle)


def _running(spark: SparkSession, names: Names) -> tuple[str, str]:
    check_has_delta(spark, is_on_classpath=_is_on_classpath(spark))
    return spark.version, str(Jvm.singleton(names.io.delta, "package").VERSION())


def delta_jar(names: Names | Jvm) -> str:
    """Return where Delta's classes are from; empty if the JVM does not know."""
    package = Jvm.singleton(names.io.delta, "package")
    source = package.getClass().getProtectionDomain().getCodeSource()
    return "" if source is None else str(source.getLocation())


def _is_on_classpath(spark: SparkSession) -> bool:
    # py4j's view asks the JVM, and hands out a package for any name it cannot resolve.
    view: Any = spark.sparkContext._jvm
    return isinstance(view.org.apache.spark.sql.delta.DeltaLog, JavaClass)


def running_releases(spark: SparkSession) -> tuple[str, str]:
    """Return the releases of Spark and Delta that the session runs; check both."""
    Jvm.of(spark)
    return _RELEASES[spark.sparkContext]


def jars_with(spark: SparkSession, name: str) -> list[str]:
    """Return the URLs of the jars or directories with a class; the JVM takes it from the first.

    `name` is the full name of a class, e.g. `io.delta.tables.DeltaTable`.
    """
    view: Any = spark.sparkContext._jvm  # also of a session whose releases are refused
    loader = view.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    file = name.replace(".", "/") + ".class"
    found = view.java.util.Collections.list(loader.getResources(file))
    urls = [str(url.toString()) for url in found]
    return list(dict.fromkeys(url.removesuffix(file).strip("/!") for url in urls))


def check_is_classic(spark: object) -> None:
    """Refuse an argument that is not a session of this process's JVM.

    Raises:
        UnsupportedSessionError: `spark` is a session of Spark Connect.
        StatementError: `spark` is not a SparkSession.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise errors.UnsupportedSessionError(
            "the session is one of Spark Connect, and deltaweave works in the driver's JVM.",
            operation="opening the session",
            state=errors.NOTHING_DONE,
            hint="Run it where the driver is: start Spark with deltaweave.local_session(), or with "
            "spark.api.mode=classic.",
        )
    if not isinstance(spark, SparkSession):
        raise errors.StatementError(
            f"the first argument is {_type_name(spark)}, and a SparkSession is needed.",
            operation="opening the session",
            state=errors.NOTHING_DONE,
            hint="Give the session first, e.g. deltaweave.local_session().",
        )


def check_has_delta(spark: SparkSession, *, is_on_classpath: bool) -> None:
    """Refuse a session without Delta's classes, or with its jars but not its two settings."""
    needed = " and ".join(f"{key}={DELTA_SETTINGS[key]}" for key in (_EXTENSIONS, _CATALOG))
    if not is_on_classpath:
        problem = "the session has no Delta Lake."
        with suppress(PackageNotFoundError):  # a package without metadata, as by --py-files
            needed = f"spark.jars.packages={delta_conf()['spark.jars.packages']}, {needed}"
    else:
        is_there = {"extension": _has_extension(spark), "catalog": _has_catalog(spark)}
        lacking = [f"Delta's {what}" for what, there in is_there.items() if not there]
        if not lacking:
            return
        problem = f"the session has Delta's jars, but was started without {' and '.join(lacking)}."
    raise errors.UnsupportedSessionError(
        problem,
        operation="opening the session",
        state=errors.NOTHING_DONE,
        hint=f"Start Spark with deltaweave.local_session(), or with {needed}.",
    )


def _has_extension(spark: SparkSession) -> bool:
    named = (spark.conf.get(_EXTENSIONS, "") or "").split(",")
    if DELTA_SETTINGS[_EXTENSIONS] in [name.strip() for name in named]:
        return True
    # Code in the JVM may have added it without the setting.
    parser = spark._jsparkSession.sessionState().sqlParser()
    return str(parser.getClass().getName()).startswith("io.delta.")


def _has_catalog(spark: SparkSession) -> bool:
    # Other catalogs, as those of products, may stand before Delta's: Spark's own does not.
    return (spark.conf.get(_CATALOG, "") or "") not in ("", "builtin")


def check_is_data_frame(rows: object, argument: str, *, table: str, operation: str) -> None:
    """Refuse rows that are not a DataFrame of a classic session.

    Raises:
        UnsupportedSessionError: The rows are of Spark Connect.
        StatementError: The rows are no DataFrame.
    """
    session = None if _library(rows) in _HINTS else getattr(rows, "sparkSession", None)
    if session is not None:
        check_is_classic(session)
        return
    hint = _HINTS.get(_library(rows), "Give a DataFrame of the session.")
    raise errors.StatementError(
        f"{argument} is {_type_name(rows)}, and a Spark DataFrame is needed.",
        table=table,
        operation=operation,
        hint=hint,
    )


def check_is_path_or_name(given: object) -> None:
    """Refuse a table that is not given as text.

    Raises:
        StatementError: The argument has another type.
    """
    if isinstance(given, str):
        return
    hint = "Give its path or name as a string."
    if _library(given) == "delta":
        hint = "Give its path, table.detail().first().location, or its name."
    raise errors.StatementError(
        f"the table is given as {_type_name(given)}, and its path or name is needed.",
        operation="opening",
        state=errors.NOTHING_DONE,
        hint=hint,
    )


def _library(value: object) -> str:
    return type(value).__module__.split(".")[0]


def _type_name(value: object) -> str:
    """Name a type as its users call it, e.g. `a pandas DataFrame`."""
    library, name = _library(value), type(value).__name__
    if library == "builtins":
        return "None" if value is None else f"a value of type {name}"
    return f"a {name} of {library}"
