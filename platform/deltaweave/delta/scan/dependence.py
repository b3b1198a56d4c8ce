"""Whether the rows of a query depend on the merge's target, by the kinds of its plan's nodes.

A merge whose commit lost may run again only if its source then gives what it would give to a
statement that runs after the commits that won (docs/internals/rebasing.md has the kinds). Spark and
its extensions can add operators and expressions at any time. A class that is in none of the lists
below is not known, and whoever asks must take it for one that may read anything.
"""

from __future__ import annotations

import os
import pickletools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from deltaweave.delta.commit import local_directory
from deltaweave.delta.jvm import DeltaLog, JavaObject, Jvm, Plan
from deltaweave.delta.log import FILE_RELATION
from deltaweave.delta.releases import reads_cached_rows
from deltaweave.delta.scan.source import origin_of
from deltaweave.delta.statement import ResolvedMerge, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."


def show_files_of(target: Path, directories: Iterable[str]) -> bool:
    """Return whether links or mounts show files of the target in these directories.

    Directories are compared by their identity on the disk. A file that is no link lies where its
    directory does, and there may be millions of them, so no other is looked at.
    """
    found = set()
    for directory in directories:
        found.add(Path(os.path.realpath(directory)))
        with os.scandir(directory) as entries:
            links = [each.path for each in entries if each.is_symlink() and not each.is_dir()]
        found.update(Path(os.path.realpath(link)).parent for link in links)
    above = {each for directory in found for each in (directory, *directory.parents)}
    return any(os.path.samefile(each, target) for each in above)


def directory_of(uri: str) -> str:
    """Return the path of a URI, links resolved, and with a slash at its end.

    One file system may have several names (`s3`, `s3a`; a name service and its nodes), so paths
    alone are compared. In a URI, line breaks and the like are escaped, which a path may have.
    """
    split = urlsplit(uri)
    plain = unquote(split.path)
    if split.scheme in ("", "file"):
        plain = os.path.realpath(plain)
    return f"{plain.rstrip('/')}/"


_RDDS = "org.apache.spark.rdd."
_PYTHON = "org.apache.spark.api.python.PythonRDD"
_MAPPED, _LOCAL_ROWS = f"{_RDDS}MapPartitionsRDD", f"{_RDDS}ParallelCollectionRDD"
# What Spark makes of an Arrow table that is too big for a plan, and calls so.
_OF_ARROW, _ARROW = [_MAPPED, _LOCAL_ROWS], "arrow"
# PySpark makes five RDDs of a list.
_MAX_DEPTH = 8


def holds_rows_of_python(spark: SparkSession, rdd: JavaObject, schema: JavaObject) -> bool:
    """Return whether an RDD converts rows that Python sent, and does nothing else.

    Its RDDs are exactly those that PySpark makes. A JVM program's RDD may begin with local rows
    too, and read files by them. A query's RDD does not count, even if it begins with rows of
    Python: a broadcast join, for example, reads a table that is no parent of the RDD. Nor does one
    with a Python function of a user.
    """
    chain = _chain(rdd)
    classes = _classes(chain)
    if classes == _OF_ARROW:
        return bool(rdd.name() == _ARROW)
    if classes.count(_PYTHON) != 1:
        return False
    context: Any = spark.sparkContext
    of_list = context.parallelize([], 1)
    if classes != _classes(_chain(_made(spark, of_list, "v INT"))):
        return False
    found = _shape(_command(spark, chain[classes.index(_PYTHON)]))
    if found == _shape(_command(spark, of_list._pickled()._jrdd.rdd())):
        return True
    made = _chain(_made(spark, of_list, spark_schema(spark, schema, columns=schema.length())))
    return found == _shape(_command(spark, made[classes.index(_PYTHON)]))


def _chain(rdd: JavaObject) -> list[JavaObject]:
    """Return an RDD, its parent, and so on, while each has one parent."""
    chain = [rdd]
    while len(chain) < _MAX_DEPTH:
        parents = chain[-1].dependencies()  # those of a checkpoint, if there is one
        if parents.size() != 1:
            break
        chain.append(parents.head().rdd())
    return chain


def _classes(chain: list[JavaObject]) -> list[str]:
    return [str(rdd.getClass().getName()) for rdd in chain]


def _made(spark: SparkSession, rows: Any, schema: StructType | str) -> JavaObject:
    """Return the RDD that PySpark makes of rows."""
    return spark.createDataFrame(rows, schema)._jdf.queryExecution().analyzed().rdd()


def _command(spark: SparkSession, rdd: JavaObject) -> bytes:
    """Return the pickled function of a Python RDD."""
    field = Jvm.of(spark).class_of_delta(_PYTHON).getDeclaredField("func")
    field.setAccessible(True)
    tags = Jvm.singleton(Jvm.of(spark).scala.reflect, "ClassTag")
    return bytes(field.get(rdd).command().toArray(tags.Byte()))


def _shape(pickled: bytes) -> list[tuple[str, object]]:
    """Return a pickle's parts without its numbers: batches of rows have several sizes."""
    return [
        ("number", None) if isinstance(argument, int) else (code.name, argument)
        for code, argument, _ in pickletools.genops(pickled)
    ]


_DELTA_FILES = "org.apache.spark.sql.delta.files."
_CHANGE_FEED = "org.apache.spark.sql.delta.commands.cdc.CDCReader$DeltaCDFRelation"
_KAFKA = "org.apache.spark.sql.kafka010.KafkaRelation"
_EXECUTION = "org.apache.spark.sql.execution."
_STREAM_ID = "sql.streaming.queryId"


class DependsOnTarget(IntEnum):
    """The ways in which the rows of a query depend on the target's versions."""

    NO = 0
    """They stay the same whatever is committed to the target."""
    NEWEST = 1
    """Evaluated again, they are those of the target's newest version."""
    UNKNOWN = 2
    """They may be those of an older version."""


@dataclass(frozen=True)
class Dependence:
    """The dependence of a query on the target, and the part of its plan that shows it.

    Attributes:
        on_target: How they depend on it.
        because: The part of the plan, in a user's words.
    """

    on_target: DependsOnTarget
    because: str = ""

    @property
    def is_none(self) -> bool:
        """Whether the rows do not depend on the target."""
        return self.on_target is DependsOnTarget.NO

    @property
    def is_unknown(self) -> bool:
        """Whether the rows may be those of an older version of the target."""
        return self.on_target is DependsOnTarget.UNKNOWN

    def where_fixed(self, because: str) -> Dependence:
        """Return the dependence of rows that are not evaluated again."""
        return self if self.is_none else _unknown(f"{because} ({self.because})")


_NONE = Dependence(DependsOnTarget.NO)


def _depends_on_newest(because: str) -> Dependence:
    return Dependence(DependsOnTarget.NEWEST, because)


def _unknown(because: str) -> Dependence:
    return Dependence(DependsOnTarget.UNKNOWN, because)


def source_dependence(merge: ResolvedMerge) -> Dependence:
    """Return how the source depends on the target."""
    found = _Search(merge).of_query(merge.source_plan)
    if not found.is_none and reads_cached_rows(merge.node, merge.source):
        return found.where_fixed("rows that were cached before")
    return found


def clauses_dependence(merge: ResolvedMerge) -> Dependence:
    """Return how the subqueries of clauses and of the ON condition depend on the target."""
    # The statement's node has no children for Spark: the source's subqueries are not among them.
    jvm, plans = Jvm.of(merge.spark), list(Jvm.iterate(merge.node.subqueriesAll()))
    found = _Search(merge).of_plans(plans)
    if not found.is_none and any(
        reads_cached_rows(merge.node, jvm.data_frame_of_plan(plan)) for plan in plans
    ):
        return found.where_fixed("rows that were cached before")
    return found


def unknown_in_clauses(merge: ResolvedMerge) -> list[str]:
    """Return the expressions of ON and clauses not known to be functions of their rows alone."""
    nodes = Jvm.of(merge.spark).nodes_within(merge.node.expressions())
    return _simple(Jvm.of(merge.spark).class_names(nodes) - CLAUSE_NODES)


def _simple(names: Iterable[str]) -> list[str]:
    return sorted(name.rpartition(".")[2] for name in names)


def _most(found: Iterable[Dependence]) -> Dependence:
    return max(found, key=lambda each: each.on_target, default=_NONE)


@dataclass(frozen=True)
class _Search:
    """Searches plans for what reads the target of a merge."""

    merge: ResolvedMerge

    @cached_property
    def jvm(self) -> Jvm:
        return Jvm.of(self.merge.spark)

    def of_query(self, plan: Plan) -> Dependence:
        """Return the dependence of a plan with its subqueries."""
        return self.of_plans([plan, *Jvm.iterate(plan.subqueriesAll())])

    def of_plans(self, plans: Sequence[JavaObject]) -> Dependence:
        return _most(self._of_plan(plan) for plan in plans)

    def _of_plan(self, plan: Plan) -> Dependence:
        leaves = list(Jvm.iterate(plan.collectLeaves()))
        nodes = self.jvm.nodes_within(self.jvm.seq([plan]))
        classes = self.jvm.class_names(nodes)
        of_leaves = {leaf.getClass().getName() for leaf in leaves}
        unknown = classes - KNOWN_OPERATORS - USER_OPERATORS - of_leaves
        if unknown:
            return _unknown(f"the operator {_simple(unknown)[0]}")
        found = [self._of_leaf(leaf) for leaf in leaves]
        expressions = self.jvm.class_names(self.jvm.expressions_within(nodes))
        code = [*_simple(classes & USER_OPERATORS), *_simple(expressions - QUERY_FUNCTIONS)]
        if "PythonUDTF" in code:  # its `analyze` ran when the statement was analyzed
            found.append(_unknown("a Python table function"))
        elif code:
            found.append(_depends_on_newest(f"{code[0]}, which may read anything"))
        return _most(found)

    def _of_leaf(self, leaf: Plan) -> Dependence:
        name, simple = leaf.getClass().getName(), leaf.getClass().getSimpleName()
        if name in LEAVES:
            return _NONE
        if name == f"{_EXECUTION}LogicalRDD":
            return self._of_rdd(leaf)
        if name == f"{_EXECUTION}columnar.InMemoryRelation":
            query = self.of_query(leaf.cacheBuilder().logicalPlan())
            return query.where_fixed("rows that were cached before")
        if name == f"{_EXECUTION}datasources.LogicalRelation":
            return self._of_relation(leaf.relation())
        if simple == "StreamingDataSourceV2ScanRelation":
            stream = leaf.stream().getClass()
            if stream.getName().startswith("org.apache.spark.sql."):
                known = stream.getSimpleName() in STREAMS
                return _NONE if known else _unknown(f"the stream {stream.getSimpleName()}")
        return _unknown(f"{simple}, a kind of source that is not known")

    def _of_relation(self, relation: JavaObject) -> Dependence:
        name = relation.getClass().getName()
        if name == _CHANGE_FEED:
            log = relation.snapshotWithSchemaMode().snapshot().deltaLog()
            return _unknown("the target's change data feed") if self._is_target(log) else _NONE
        if name == _KAFKA:
            return _NONE
        if not self.jvm.is_a(relation, FILE_RELATION):
            return _unknown(f"{name}, a kind of source that is not known")
        index = relation.location()
        if not self.jvm.is_a(index, f"{_DELTA_FILES}TahoeFileIndex"):
            return self._of_files(relation, index)
        log = index.deltaLog()
        if not self._is_target(log):
            return _NONE
        by_log = self.jvm.is_a(index, f"{_DELTA_FILES}TahoeLogFileIndex")
        if by_log and log.isSameLogAs(self.merge.target_log):
            return _depends_on_newest("the target itself")
        return _unknown("files or a copy of the target")

    def _is_target(self, log: DeltaLog) -> bool:
        """Return whether a log is the target's, by whatever path."""
        target = self.merge.target_log
        return bool(log.isSameLogAs(target)) or log.tableId() == target.tableId()

    def _of_files(self, relation: JavaObject, index: JavaObject) -> Dependence:
        """Return the dependence of files that are read by their paths."""
        kind = index.getClass().getSimpleName()
        if not relation.fileFormat().getClass().getName().startswith("org.apache.spark."):
            return _unknown("files of a format that is not known")
        if kind == "CatalogFileIndex" and index.table().partitionColumnNames().nonEmpty():
            return _unknown("a table whose partitions may lie anywhere")
        if kind not in ("InMemoryFileIndex", "CatalogFileIndex"):
            return _unknown(f"files that {kind} lists")
        to_uri = self.jvm.function("org.apache.hadoop.fs.Path", "toUri")
        to_text = self.jvm.function("java.lang.Object", "toString")
        uris = index.rootPaths().map(to_uri).map(to_text).distinct()
        roots = str(uris.mkString(" ")).split(" ")  # a URI has no blank
        if any(self._overlaps_target(root) for root in roots if root):
            return _unknown("the target's files by their path")
        if kind == "CatalogFileIndex":
            index = index.filterPartitions(self.jvm.seq([]))
        to_path = self.jvm.function("org.apache.hadoop.fs.FileStatus", "getPath")
        to_parent = self.jvm.function("org.apache.hadoop.fs.Path", "getParent")
        parents = index.allFiles().map(to_path).map(to_parent).distinct()
        uris = parents.map(to_uri).map(to_text)
        if self._is_linked(str(uris.mkString(" ")).split(" ")):
            return _unknown("the target's files by a link")
        return _NONE

    def _is_linked(self, uris: Iterable[str]) -> bool:
        """Return whether a file of these directories lies in the target."""
        read = [unquote(urlsplit(uri).path) for uri in uris if uri.startswith("file:")]
        target = local_directory(str(self.merge.target_log.dataPath().toString()))
        if not read or target is None:
            return False
        try:
            return show_files_of(target, read)
        except OSError:
            return True  # some files are gone

    def _overlaps_target(self, uri: str) -> bool:
        one, other = directory_of(uri), self._target_directory
        return one.startswith(other) or other.startswith(one)

    @cached_property
    def _target_directory(self) -> str:
        return directory_of(str(self.merge.target_log.dataPath().toUri().toString()))

    def _of_rdd(self, leaf: Plan) -> Dependence:
        """Return the dependence of an RDD, which shows no plan; it is evaluated at most once."""
        spark, rdd = self.merge.spark, leaf.rdd()
        if holds_rows_of_python(spark, rdd, leaf.schema()):
            return _NONE
        origin = origin_of(spark, rdd)
        if origin is not None:
            return self.of_query(origin).where_fixed("a checkpoint")
        batch = self._running_batch()
        if batch is not None and batch.toRdd().id() == rdd.id():
            return self.of_query(batch.analyzed()).where_fixed("a stream's batch")
        return _unknown("an RDD or a checkpoint, which does not show what it was computed from")

    def _running_batch(self) -> JavaObject | None:
        """Return the execution of the batch that this thread processes, if it does."""
        spark = self.merge.spark
        query_id = spark.sparkContext.getLocalProperty(_STREAM_ID)
        if not query_id:
            return None
        streams = spark._jsparkSession.sharedState().activeStreamingQueries()
        running = streams.get(self.jvm.java.util.UUID.fromString(query_id))
        return None if running is None else running.lastExecution()


def _of(package: str, names: str) -> frozenset[str]:
    return frozenset(f"{package}{name}" for name in names.split())


LEAVES = _of(
    _PLANS, "CTERelationRef EmptyRelation LocalRelation OneRowRelation Range UnionLoopRef"
) | _of("org.apache.spark.sql.catalyst.analysis.", "ResolvedInlineTable")
"""Leaves of a plan that hold their rows, make them, or name a plan that is searched, too."""

KNOWN_OPERATORS = _of(
    _PLANS,
    """
    Aggregate AsOfJoin CTERelationDef CollectMetrics Deduplicate Distinct EventTimeWatermark Except
    Expand Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit Offset Pivot Project
    RebalancePartitions Repartition RepartitionByExpression ResolvedHint ReturnAnswer Sample Sort
    Subquery SubqueryAlias Tail Transpose Union UnionLoop Unpivot View Window WithCTE
    WithWindowDefinition
    """,
) | _of("org.apache.spark.sql.execution.streaming.sources.", "WriteToMicroBatchDataSourceV1")
"""Operators that read their children alone."""

USER_OPERATORS = _of(
    _PLANS,
    """
    AppendColumns AppendColumnsWithObject CoGroup DeserializeToObject FlatMapCoGroupsInArrow
    FlatMapCoGroupsInPandas FlatMapGroupsInArrow FlatMapGroupsInPandas MapElements MapGroups
    MapInArrow MapInPandas MapPartitions ScriptTransformation SerializeFromObject TypedFilter
    """,
)
"""Operators that give their children's rows to a user's code, which runs whenever they run."""

ROW_FUNCTIONS = (
    _of(
        _EXPRESSIONS,
        # Structure.
        """
        Alias AttributeReference Between CaseWhen Cast CheckOverflow Coalesce If KnownNotNull
        KnownNullable LambdaFunction Literal NamedLambdaVariable NullIf NullIfZero Nvl Nvl2
        CommonExpressionDef CommonExpressionRef OuterReference SortOrder TryEval TypeOf
        TypedNullLiteral UpCast With ZeroIfNull
        And AtLeastNNonNulls EqualNull EqualNullSafe EqualTo GreaterThan GreaterThanOrEqual ILike
        In InSet IsNaN IsNotNull IsNull LessThan LessThanOrEqual Like LikeAll LikeAny NaNvl Not
        NotLikeAll NotLikeAny Or RLike
        """
        # Numbers and bits.
        """
        Abs Acos Acosh Add Asin Asinh Atan Atan2 Atanh BRound Bin BitmapBitPosition
        BitmapBucketNumber BitmapCount BitwiseAnd BitwiseCount BitwiseGet BitwiseNot BitwiseOr
        BitwiseXor Cbrt Ceil Conv Cos Cosh Cot Csc DecimalAddNoOverflowCheck
        DecimalDivideWithOverflowCheck Divide EulerNumber Exp Expm1 Factorial Floor Greatest Hex
        Hypot IntegralDivide Least Log Log10 Log1p Log2 Logarithm MakeDecimal Multiply Pi Pmod Pow
        Remainder Rint Round RoundCeil RoundFloor Sec ShiftLeft ShiftRight ShiftRightUnsigned
        Signum Sin Sinh Sqrt Subtract Tan Tanh ToDegrees ToRadians TryAdd TryDivide TryMod
        TryMultiply TrySubtract UnaryMinus UnaryPositive Unhex UnscaledValue WidthBucket
        """
        # Text and bytes.
        """
        AesDecrypt AesEncrypt Ascii Base64 BinaryPad BitLength Chr Collate Collation Concat
        ConcatWs Contains Crc32 Decode Elt Encode EndsWith FindInSet FormatNumber FormatString
        InitCap IsValidUTF8 Left Length Levenshtein Lower Luhncheck MakeValidUTF8 Mask Md5
        Murmur3Hash OctetLength Overlay ParseUrl Quote RegExpCount RegExpExtract RegExpExtractAll
        RegExpInStr RegExpReplace RegExpSubStr ResolvedCollation Reverse Right Sentences Sha1 Sha2
        SoundEx SplitPart StartsWith StringDecode StringInstr StringLPad StringLocate StringRPad
        StringRepeat StringReplace StringSpace StringSplit StringTranslate StringTrim
        StringTrimBoth StringTrimLeft StringTrimRight Substring SubstringIndex ToBinary ToCharacter
        ToNumber TryAesDecrypt TryParseUrl TryToBinary TryToNumber TryUrlDecode TryValidateUTF8
        UnBase64 Upper UrlDecode UrlEncode ValidateUTF8 XxHash64
        """
        # Dates, times and intervals.
        """
        AddMonths ConvertTimezone DateAdd DateAddInterval DateAddYMInterval DateDiff
        DateFormatClass DateFromUnixDate DatePart DateSub DatetimeSub DayName DayOfMonth DayOfWeek
        DayOfYear DivideDTInterval DivideInterval DivideYMInterval Extract ExtractANSIIntervalDays
        FromUTCTimestamp FromUnixTime Hour HoursOfTime LastDay MakeDTInterval MakeDate MakeInterval
        MakeTime MakeTimestamp MakeTimestampNTZ MakeYMInterval MicrosToTimestamp MillisToTimestamp
        Minute MinutesOfTime Month MonthName MonthsBetween MultiplyDTInterval MultiplyInterval
        MultiplyYMInterval NextDay ParseToDate ParseToTimestamp Quarter Second SecondWithFraction
        SecondsOfTime SecondsToTimestamp SubtractDates SubtractTimestamps SubtractTimes TimeAdd
        TimeAddInterval TimeDiff TimeTrunc TimestampAdd TimestampAddInterval TimestampAddYMInterval
        TimestampDiff ToTime ToUTCTimestamp ToUnixTimestamp TruncDate TruncTimestamp
        TryMakeInterval TryMakeTimestamp TryMakeTimestampLTZ TryMakeTimestampNTZ TryToTimestamp
        UnixDate UnixMicros UnixMillis UnixSeconds UnixTimestamp WeekDay WeekOfYear Year
        YearOfWeek
        """
        # Arrays, maps and structs.
        """
        ArrayAggregate ArrayAppend ArrayCompact ArrayContains ArrayDistinct ArrayExcept ArrayExists
        ArrayFilter ArrayForAll ArrayInsert ArrayIntersect ArrayJoin ArrayMax ArrayMin
        ArrayPosition ArrayPrepend ArrayRemove ArrayRepeat ArraySize ArraySort ArrayTransform
        ArrayUnion ArraysOverlap ArraysZip CreateArray CreateMap CreateNamedStruct DropField
        ElementAt Flatten Get GetArrayItem GetArrayStructFields GetMapValue GetStructField
        MapConcat MapContainsKey MapEntries MapFilter MapFromArrays MapFromEntries MapKeys
        MapValues MapZipWith Sequence Size Slice SortArray StringToMap TransformKeys
        TransformValues TryElementAt UpdateFields WithField ZipWith
        """
        # Texts that hold other values.
        """
        CsvToStructs GetJsonObject JsonObjectKeys JsonToStructs LengthOfJsonArray SchemaOfCsv
        SchemaOfJson SchemaOfXml StructsToCsv StructsToJson StructsToXml XmlToStructs
        variant.IsValidVariant variant.IsVariantNull variant.ParseJson variant.SchemaOfVariant
        variant.ToVariantObject variant.VariantGet
        xml.XPathBoolean xml.XPathDouble xml.XPathFloat xml.XPathInt xml.XPathList xml.XPathLong
        xml.XPathShort xml.XPathString
        """,
    )
    # Expressions that Spark and Delta wrap around assigned values.
    | _of("org.apache.spark.sql.catalyst.expressions.objects.", "AssertNotNull")
    | _of("org.apache.spark.sql.delta.", "CheckOverflowInTableWrite")
)
"""Expressions whose value is a function of their row alone: the same each time."""

_MERGE_NODES = _of(
    _PLANS,
    """
    DeltaMergeAction DeltaMergeIntoMatchedDeleteClause DeltaMergeIntoMatchedUpdateClause
    DeltaMergeIntoNotMatchedBySourceDeleteClause DeltaMergeIntoNotMatchedBySourceUpdateClause
    DeltaMergeIntoNotMatchedInsertClause
    """,
)

CLAUSE_NODES = ROW_FUNCTIONS | _MERGE_NODES
"""What clauses may consist of, so that their outcome is a function of source and target row."""

QUERY_FUNCTIONS = (
    ROW_FUNCTIONS
    # Aggregates, windows and generators.
    | _of(
        _EXPRESSIONS,
        """
        CumeDist CurrentRow DenseRank Explode Grouping GroupingID Inline JsonTuple Lag Lead NTile
        NthValue PercentRank PosExplode Rank RowFrame RangeFrame RowNumber SpecifiedWindowFrame
        Stack UnboundedFollowing UnboundedPreceding UnspecifiedFrame WindowExpression
        WindowSpecDefinition BitmapAndAgg BitmapConstructAgg BitmapOrAgg
        """,
    )
    | _of(
        f"{_EXPRESSIONS}aggregate.",
        """
        AggregateExpression AnyValue ApproximatePercentile Average BitAndAgg BitOrAgg BitXorAgg
        BoolAnd BoolOr CollectList CollectSet Corr Count CountIf CountMinSketchAgg CovPopulation
        CovSample First HistogramNumeric HyperLogLogPlusPlus Kurtosis Last ListAgg Max MaxBy Median
        Min MinBy Mode Percentile PercentileCont PercentileDisc RegrAvgX RegrAvgY RegrCount
        RegrIntercept RegrR2 RegrSXX RegrSXY RegrSYY RegrSlope Skewness StddevPop StddevSamp Sum
        TryAverage TrySum VariancePop VarianceSamp
        """,
    )
    # Subqueries, whose plans are searched, too.
    | _of(_EXPRESSIONS, "Exists InSubquery LateralSubquery ListQuery ScalarSubquery")
    # What the session, the task or chance gives.
    | _of(
        _EXPRESSIONS,
        """
        CurrentCatalog CurrentDatabase CurrentDate CurrentTime CurrentTimeZone CurrentTimestamp
        CurrentUser InputFileBlockLength InputFileBlockStart InputFileName LocalTimestamp
        MonotonicallyIncreasingID Now Rand RandStr Randn Shuffle SparkPartitionID SparkVersion
        Uniform Uuid
        """,
    )
    | _of("org.apache.spark.sql.avro.", "AvroDataToCatalyst CatalystDataToAvro")
)
"""Expressions that read their rows, and no table or file."""

STREAMS = frozenset(
    {
        "KafkaMicroBatchStream",
        "MemoryStream",
        "RatePerMicroBatchStream",
        "RateStreamMicroBatchStream",
        "TextSocketMicroBatchStream",
    }
)
"""Sources of streams that read no file."""
