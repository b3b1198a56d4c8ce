"""The operators and expressions of Spark that are known not to read a table by themselves.

Spark and its extensions can add others at any time. A class that stands in none of these lists is
not known, and whoever asks must take it for one that may read anything.
"""

from __future__ import annotations

_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."


def _of(package: str, names: str) -> frozenset[str]:
    return frozenset(f"{package}{name}" for name in names.split())


LEAVES = _of(
    _PLANS, "CTERelationRef EmptyRelation LocalRelation OneRowRelation Range UnionLoopRef"
) | _of("org.apache.spark.sql.catalyst.analysis.", "ResolvedInlineTable")
"""Leaves of a plan that hold their rows, make them, or name a plan that is searched, too."""

OPERATORS = _of(
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
    # What Spark and Delta put around assigned values.
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
