"""Reads a landed source partition, or raises one clear error before anything is merged.

A run applies the delivery that its tag names, and no other one: it reads and keeps all rows, and
checks the landing directory before and after, because another delivery may replace that one.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import unquote

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from dagster_deltaweave.landing.listing import Delivery, delivery
from dagster_deltaweave.partitions import DELIVERY_TAG, hidden_tag, written_tag
from dagster_deltaweave.storage import file_system, local_path, without_query
from deltaweave._validation import check_given_location
from deltaweave.delta.jvm import translated
from deltaweave.delta.log import STRICTLY
from deltaweave.delta.scan import checkpointed
from deltaweave.errors import NOTHING_READ, DeltaweaveError, SourceError, StatementError
from deltaweave.identifiers import is_path, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession


FILE, RECORD, PROBLEMS = "__deltaweave_file", "__deltaweave_record", "__deltaweave_problems"
"""Columns beside those of the schema, see `TextFiles.rows`."""
LANDING = hidden_tag("deltaweave/landing")
"""Run tag with its delivery as JSON: `directory`, `marker`, `suffix`, its `identity`, and `files`.

`files` is the digest of all its files. It is missing if they could not be listed, without a marker
(the identity is then that digest), and in tags of earlier releases.
"""

_LONGEST = 100_000
"""Characters of a bad row that are kept: without its line ends, a file is one row."""

_LONGEST_SHOWN = 100

_OURS = frozenset(
    {
        *("mode", "columnnameofcorruptrecord", "columnpruning", "inferschema", "samplingratio"),
        *("path", "ignorecorruptfiles", "ignoremissingfiles", "recursivefilelookup"),
    }
)
# These say where rows begin and end, and a bad row is looked at by itself.
_OF_FILES = frozenset({"header", "multiline", "linesep", "encoding", "charset"})


@dataclass(frozen=True)
class TextFiles:
    """Files of CSV or JSON that must have the columns of one schema.

    Attributes:
        options: Spark's options of the format, with their values as texts.
    """

    spark: SparkSession
    format: Literal["csv", "json"]
    schema: StructType
    options: Mapping[str, str]

    def refused_option(self) -> str | None:
        """Return the first option that this module sets itself; None if there is none."""
        return next((name for name in self.options if name.lower() in _OURS), None)

    def schema_of(self, file: str) -> StructType:
        """Return the columns of a file; columns that the schema lacks are texts.

        A CSV file has those of its header; one without a header, those of the schema. A JSON file
        has all of the schema, because its objects need not name each.
        """
        if self.format == "csv" and self._option("header", "true") != "true":
            return self.schema
        if self.format == "csv":
            names = self._reader().option("header", "true").load(file).columns
        else:
            texts = {"primitivesAsString": "true", "columnNameOfCorruptRecord": RECORD}
            inferred = self._reader().options(**texts).load(file).columns
            names = [*self.schema.names, *(n for n in inferred if n not in self.schema.names)]
            names = [name for name in names if name != RECORD]
        fields = {field.name: field for field in self.schema}
        return StructType([fields.get(name, StructField(name, StringType())) for name in names])

    def rows(self, schemas: Mapping[str, StructType]) -> DataFrame:
        """Read all rows of the files; of those that do not fit, what could be read of them.

        Returns:
            The columns of the schema, and `FILE`; for a row that does not fit `RECORD`, its text,
            and `PROBLEMS`, the columns whose values do not fit, none of which is named if the row
            has another number of values or is not a JSON object; both are null for other rows.
        """
        alike: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for file, schema in schemas.items():
            alike[tuple(schema.names)].append(file)
        parts = [self._rows_of_files(schemas[files[0]], files) for files in alike.values()]
        return reduce(lambda one, other: one.unionByName(other), parts)

    def bad_rows(self, rows: DataFrame) -> DataFrame:
        """Select the rows that do not fit.

        Returns:
            A DataFrame `(file STRING, record STRING, columns ARRAY<STRING>, read STRING)`: `read`
            is JSON of what could be read of the row.
        """
        return rows.where(F.col(RECORD).isNotNull()).select(
            F.col(FILE).alias("file"),
            F.col(RECORD).alias("record"),
            F.col(PROBLEMS).alias("columns"),
            # Spark refuses a query for the records alone.
            F.to_json(F.struct(*map(quoted, self.schema.names))).alias("read"),
        )

    def good_rows(self, rows: DataFrame, *, others_are_errors: bool) -> DataFrame:
        """Select the rows that fit, with the columns of the schema."""
        columns = list(map(quoted, self.schema.names))
        otherwise = F.lit(False)
        if others_are_errors:  # files were replaced since they were looked through
            message = F.concat(F.lit("a row does not fit the schema: "), F.col(RECORD))
            otherwise = F.raise_error(message).cast("boolean")
        # Spark reads only the requested columns of JSON, and decides by these whether a row is bad;
        # and it refuses to read the records alone. This condition names all columns. It is never
        # true, but the optimizer does not know that.
        never = F.instr(F.to_json(F.struct(*columns)), "x") < 0
        fits = F.when(F.col(RECORD).isNull() | F.coalesce(never, F.lit(False)), F.lit(True))
        return rows.where(fits.otherwise(otherwise)).select(*columns)

    def described(self, file: str, record: str, columns: Sequence[str]) -> str:
        """Describe where a bad row is and which of its values do not fit."""
        types = [f"column {name} ({self.schema[name].dataType.simpleString()})" for name in columns]
        if not types:
            wanted = "JSON object" if self.format == "json" else f"row of {len(self.schema)} values"
            types = [f"no {wanted}"]
        return self.shown(file, record, *types)

    def shown(self, file: str, record: str, *problems: str) -> str:
        """Describe where a text is, what is wrong with it, and how it begins."""
        line = self._line_of(file, record)
        where = [unquote(file.rsplit("/", 1)[-1]), *([] if line is None else [f"line {line}"])]
        return f"{', '.join([*where, *problems])}: {record[:_LONGEST_SHOWN]!r}"

    def _rows_of_files(self, schema: StructType, files: Sequence[str]) -> DataFrame:
        reader = self._reader().schema(_with_text_column(schema, RECORD))
        ours = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RECORD}
        if self.format == "csv":
            # With it, a row would be bad only to those who read the column that is.
            ours |= {"columnPruning": "false", "header": self._option("header", "true")}
        problems = [F.when(self._is_bad(schema, each), F.lit(each)) for each in schema.names]
        return (
            reader.options(**ours)
            .load(list(files))
            .select(
                *map(quoted, self.schema.names),
                F.col("_metadata.file_path").alias(FILE),
                F.substring(RECORD, 1, _LONGEST).alias(RECORD),
                F.when(F.col(RECORD).isNotNull(), F.array_compact(F.array(*problems))).alias(
                    PROBLEMS
                ),
            )
        )

    def texts_of_several(self, files: Sequence[str]) -> DataFrame:
        """Read the texts of JSON in which anything follows the first value, which Spark drops.

        A text is a line, or a whole file. Those that Spark finds bad itself are left out. Its JSON
        functions change numbers in texts, so they cannot read the rows beside such a text.

        Returns:
            A DataFrame of `FILE` and `RECORD`, how the text begins.
        """
        encoding = self._option("encoding", self._option("charset", "utf-8"))
        given = {key: text for key, text in self.options.items() if key.lower() == "linesep"}
        given |= {"encoding": encoding, "wholetext": self._option("multiline", "false")}
        value = F.col("value")
        if encoding not in ("utf-8", "utf8"):
            value = F.decode(value.cast("binary"), encoding)
        reader = self.spark.read.format("text").options(**given, **_EVERY_FILE)
        texts = reader.load(list(files)).select(
            F.col("_metadata.file_path").alias(FILE),
            F.regexp_replace(value, "^\ufeff", "").alias(RECORD),  # a byte order mark
        )
        options, text = self._options_of_rows(), F.col(RECORD)
        # Spark finds out by itself that a file is of UTF-16, which has this character at its begin.
        is_read = text.rlike(r"\S") & ~F.contains(F.substring(text, 1, 4), F.lit("\0"))
        # Another value after the first, or a bracket, makes this no array of two values.
        both = F.concat(F.lit("["), text, F.lit(f'\n,"{RECORD}"]'))
        values = F.from_json(both, "array<string>", options)
        is_one = (F.size(values) == 2) & (F.get(values, F.lit(1)) == F.lit(RECORD))
        of_object = F.from_json(text, _with_text_column(self.schema, RECORD), options)
        of_array = F.from_json(text, "array<string>", options)
        is_array = text.rlike(r"^\s*\[")
        is_fit = F.when(is_array, of_array.isNotNull()).otherwise(of_object[RECORD].isNull())
        found = texts.where(is_read & ~F.coalesce(is_one, F.lit(False)) & is_fit)
        return found.select(FILE, F.substring(text, 1, _LONGEST).alias(RECORD))

    def _is_bad(self, schema: StructType, name: str) -> Column:
        """Return whether one column makes a row unfit, which would fit with a text there."""
        texts = StructType([StructField(each, StringType()) for each in schema.names])
        typed = StructType([schema[each] if each == name else texts[each] for each in schema.names])
        return self._parsed(typed).isNotNull() & self._parsed(texts).isNull()

    def _parsed(self, schema: StructType) -> Column:
        """Return the record if the record does not fit the schema; otherwise null."""
        options, whole = self._options_of_rows(), _with_text_column(schema, RECORD)
        if self.format == "csv":
            return F.from_csv(F.col(RECORD), whole.toDDL(), options)[RECORD]
        return F.from_json(F.col(RECORD), whole, options)[RECORD]

    def _options_of_rows(self) -> dict[str, str]:
        options = {key: text for key, text in self.options.items() if key.lower() not in _OF_FILES}
        return options | {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RECORD}

    def _line_of(self, file: str, record: str) -> int | None:
        """Return the number of a row's first line; None if the file cannot be read again."""
        first = re.split(r"\r\n|\r|\n", record, maxsplit=1)[0]
        encoding = self._option("encoding", self._option("charset", "utf-8"))
        if encoding in ("utf-8", "utf8"):
            encoding = "utf-8-sig"  # Spark leaves out a byte order mark
        try:
            store, path = file_system(unquote(file))  # Spark's are URIs
            with store.open_input_stream(path) as stream:
                lines = io.TextIOWrapper(stream, encoding, errors="replace")
                begin = (line.rstrip("\r\n")[:_LONGEST] for line in lines)
                return next((number for number, line in enumerate(begin, 1) if line == first), None)
        except (OSError, ValueError, LookupError):
            return None

    def _reader(self) -> DataFrameReader:
        return self.spark.read.format(self.format).options(**self.options, **_EVERY_FILE)

    def _option(self, name: str, otherwise: str) -> str:
        given = {key.lower(): text for key, text in self.options.items()}
        return given.get(name, otherwise).lower()


def _with_text_column(schema: StructType, text: str) -> StructType:
    return StructType([*schema.fields, StructField(text, StringType())])


_ROWS_SHOWN = 3  # rows that do not fit, in an error
_PATTERN = re.compile(r"[\\*?\[\]{},]")


_EVERY_FILE = {**STRICTLY, "recursiveFileLookup": "true", "__globPaths__": "false"}
"""Options with which Spark reads what the digest of a delivery counts, except hidden names.

It reads files in directories below, whose names of the form `k=v` give no column, and takes no path
as a pattern, because Hadoop refuses patterns with a colon, as in `2024-01-01-00:00`.
"""


def literal_path(path: str) -> str:
    """Escape `*` and the like in a path, which Spark would read as a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)


def read_source_partition(
    spark: SparkSession,
    path: str,
    *,
    schema: StructType | str,
    table: str,
    format: Literal["parquet", "csv", "json"] = "parquet",
    options: Mapping[str, object] | None = None,
    rescued: str | None = None,
) -> DataFrame:
    r"""Read the files of a source partition, each of which must have exactly this schema.

    A CSV file has a header, which names its columns in any order; with `{"header": False}`
    its columns are those of the schema in their order. JSON objects need not name each column, and
    must name no other; fields within a column are not looked at. A row of either that Spark cannot
    read as the schema's types is an error that names file, line and column, or is put aside: to
    find out, the files are read once more, JSON twice. A line of JSON, or with `multiLine` a whole
    file, that has anything after its first value is an error, also with `rescued`.

    A quote in a quoted value of CSV is doubled (RFC 4180); for `\"`, as Spark writes it, give
    `{"escape": "\\"}`. Spark accepts silently: decimals, which it rounds; `2024` as a DATE; a
    quoted value that is never closed, up to its line's end; `\r\n` within a value of `multiLine`,
    as `\n`; and bytes that are not of the `encoding` (UTF-8), each as U+FFFD.

    Files in directories below are read, too; the names of these directories give no column, also if
    they are `<column>=<value>`. What has a name that begins with `.` or `_` is not read.
    On a local disk, Hadoop cannot read a file in whose own name is a colon: for the single file of
    an hour, write `hour=2024-01-01-00%3A00.csv`.

    Args:
        spark: The session that reads.
        path: The partition: a directory, or a single file.
        schema: The columns and types it must have; their order and nullability do not matter.
        table: The table into which the partition is merged, for the error message.
        format: What the files are.
        options: Spark's options for CSV or JSON, such as `sep`, `dateFormat` or `multiLine`.
        rescued: Path or name of a Delta table that takes the rows of CSV and JSON which do not fit.
            It has the columns `source_digest`, `source_partition`, `rescued_at`, `file`, `record`
            (up to 100,000 characters), `columns` and, as JSON, what could be `read` of the row. A
            partition that is read again replaces its rows.

    Raises:
        SourceError: The partition is missing, empty, unreadable, or has another schema; or it has
            rows that do not fit and are not `rescued`.
        StatementError: A location is empty or holds credentials, or an option is not supported.
    """
    for location in (path, *([rescued] if rescued is not None else [])):
        check_given_location(location, operation="reading a source partition")
    expected = schema_as_struct(schema)
    if format == "parquet":
        if options or rescued:
            raise _not_taken("options and rescued are for CSV and JSON", table)
        return _read_parquet(spark, path, expected, table)
    settings = {k: str(value) for k, value in (options or {}).items() if value is not None}
    given = {name.lower(): value for name, value in settings.items()}
    if format == "csv" and "escape" not in given:
        settings["escape"] = given.get("quote", '"')  # RFC 4180 doubles quotes
    files = TextFiles(spark, format, expected, settings)
    refused = files.refused_option()
    if refused is not None:
        raise _not_taken(f"the option {refused} is set by the function itself", table)
    return _read_text(files, path, table, rescued)


def _read_parquet(spark: SparkSession, path: str, expected: StructType, table: str) -> DataFrame:
    try:
        # Spark takes the schema from one of the files and fills columns that others lack with
        # nulls, so the schema of each file is read.
        with translated(table, otherwise=SourceError):
            rows = spark.read.options(**_EVERY_FILE).schema(expected).parquet(path)
            files = sorted(map(unquote, rows.inputFiles()))  # which Spark gives as URIs
            of_file = spark.read.options(**_EVERY_FILE)
            schemas = {file: of_file.parquet(file).schema for file in files}
    except DeltaweaveError as error:
        raise _unreadable_error(path, table, error) from error
    _check_schemas(path, table, expected, schemas)
    return rows


def _read_text(files: TextFiles, path: str, table: str, rescued: str | None) -> DataFrame:
    try:
        with translated(table, otherwise=SourceError):
            texts = files.spark.read.format("text").options(**_EVERY_FILE)
            found = sorted(map(unquote, texts.load(path).inputFiles()))
            schemas = {file: files.schema_of(file) for file in found}
    except DeltaweaveError as error:
        raise _unreadable_error(path, table, error) from error
    _check_schemas(path, table, files.schema, schemas)
    with translated(table, operation="reading a source partition", otherwise=SourceError):
        if files.format == "json":
            several = files.texts_of_several(list(schemas)).limit(_ROWS_SHOWN)
            if listed := [files.shown(*row) for row in several.collect()]:
                raise _partition_error(
                    path, table, f"has more than one value in a text of JSON: {'; '.join(listed)}."
                )
        rows = files.rows(schemas)
        bad = files.bad_rows(rows)
        if rescued is not None:
            _put_aside(bad, path, rescued)
        elif shown := bad.limit(_ROWS_SHOWN).collect():
            listed = [files.described(row.file, row.record, row.columns) for row in shown]
            raise _partition_error(
                path, table, f"has rows that do not fit its schema: {'; '.join(listed)}."
            )
        return files.good_rows(rows, others_are_errors=rescued is None)


def _put_aside(bad: DataFrame, path: str, rescued: str) -> None:
    """Replace the partition's rescued rows by the rows that do not fit."""
    # Partitioned, so that two source partitions can be read at once; a path may be too long for it.
    digest = hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:16]
    rows = bad.select(
        F.lit(digest).alias("source_digest"),
        F.lit(path).alias("source_partition"),
        F.current_timestamp().alias("rescued_at"),
        "*",
    )
    writer = (
        rows.write.format("delta")
        .mode("overwrite")
        .partitionBy("source_digest")
        .option("replaceWhere", f"source_digest = '{digest}'")
    )
    if is_path(rescued):
        writer.save(rescued)
    else:
        writer.saveAsTable(rescued)


def _check_schemas(
    path: str, table: str, expected: StructType, schemas: Mapping[str, StructType]
) -> None:
    if not schemas:
        raise _partition_error(path, table, "holds no file.")
    for file, found in schemas.items():
        name = file.rsplit("/", 1)[-1]
        if not found.fields:
            raise _partition_error(path, table, f"has no columns in {name}: the file is empty.")
        differences = list(schema_differences(expected, found))
        if differences:
            raise _partition_error(
                path, table, f"has a wrong schema in {name}: {'; '.join(differences)}."
            )


def schema_as_struct(schema: StructType | str) -> StructType:
    """Return a schema as a StructType, also if it is given as DDL."""
    struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(struct, StructType)  # fromDDL is annotated with the wider DataType
    return struct


def schema_differences(expected: StructType, found: StructType) -> Iterator[str]:
    """Yield the differences of two schemas, a text a column; order and nullability may differ."""
    types = {field.name: field.dataType.simpleString() for field in found}
    for field in expected:
        type_name = field.dataType.simpleString()
        if field.name not in types:
            yield f"column {field.name} {type_name} is missing"
        elif types[field.name] != type_name:
            yield f"column {field.name} is {types[field.name]}, not {type_name}"
    for name in types:
        if name not in expected.names:
            yield f"column {name} {types[name]} is unexpected"


def _not_taken(problem: str, table: str) -> StatementError:
    return StatementError(
        f"{problem}.",
        table=table,
        operation="reading a source partition",
        state=NOTHING_READ,
        hint="Leave it out.",
    )


def _unreadable_error(path: str, table: str, error: DeltaweaveError) -> SourceError:
    return _partition_error(path, table, f"cannot be read: {error.problem.strip().splitlines()[0]}")


def _partition_error(path: str, table: str, problem: str) -> SourceError:
    return SourceError(
        f"the source partition {path} {problem}",
        table=table,
        hint="Land the partition again; its new delivery is then merged.",
    )


def landing_tag(
    directory: str | Path, marker: str | None, found: Delivery, suffix: str = ""
) -> dict[str, str]:
    """Return the tag of a run for a delivery that was found in a landing directory."""
    tag = {"directory": directory_name(directory), "marker": marker, "identity": found.identity}
    if suffix:
        tag["suffix"] = suffix
    files = found.files
    if marker is not None and files is None:
        files = _files_digest(directory, found.name.removesuffix(suffix), suffix)
    return {LANDING: json.dumps(tag if files is None else {**tag, "files": files})}


def directory_name(directory: str | Path) -> str:
    """Return the name of a landing directory in run tags."""
    path = local_path(directory)
    return str(directory) if path is None else str(path.absolute())


class Landing(NamedTuple):
    """What a delivery is one of, by which tables and runs tell those of a partition apart.

    Attributes:
        directory: The landing directory; empty for what a run by hand merged.
        suffix: How the names of files end that are partitions; empty if directories are.
    """

    directory: str = ""
    suffix: str = ""

    @classmethod
    def of(cls, directory: str | Path, suffix: str) -> Landing:
        """Return the landing of a directory, as runs name it, and a suffix."""
        return cls(without_query(directory_name(directory)), suffix)

    @classmethod
    def of_run(cls, tags: Mapping[str, str]) -> Landing:
        """Return the landing of the delivery in a run's tags; an empty one if they name none."""
        try:
            tag = json.loads(written_tag(tags, LANDING) or "")
            return cls(without_query(tag["directory"]), tag.get("suffix", ""))
        except (AttributeError, KeyError, TypeError, ValueError):  # none, or it was written by hand
            return cls()


def _files_digest(directory: str | Path, name: str, suffix: str) -> str | None:
    try:
        found = delivery(directory, name, None, suffix)
    except SourceError:
        return None  # one directory that cannot be listed must not stop the sensor's other runs
    return found.fingerprint if found else None


def rows_of_delivery(
    rows: DataFrame, partition: str, tags: Mapping[str, str], *, table: str
) -> DataFrame:
    """Read the rows of the delivery that a run's tags name, and keep them in Spark.

    If the tags do not say where the delivery landed, the rows are returned as they are: whoever
    tags a run by hand is responsible for what it reads.

    Raises:
        SourceError: Another delivery is there now, or arrived while the rows were read.
    """
    if written_tag(tags, LANDING) is None:
        return rows
    before = look_at_delivery(partition, tags, table)
    with translated(table, operation="reading a delivery", otherwise=SourceError):
        kept = checkpointed(rows)
    if look_at_delivery(partition, tags, table) != before:
        raise _delivery_error(partition, tags, table, "changed while it was read")
    return kept


def look_at_delivery(partition: str, tags: Mapping[str, str], table: str) -> str | None:
    """Return the digest of the delivery's files.

    Raises:
        SourceError: The tag names another delivery.
    """
    landing = json.loads(written_tag(tags, LANDING) or "")
    directory, marker, suffix = landing["directory"], landing["marker"], landing.get("suffix", "")
    found = delivery(directory, partition, marker, suffix)
    if found is None:
        raise _delivery_error(partition, tags, table, f"is no longer in {directory}")
    if found.identity != landing["identity"]:
        raise _delivery_error(
            partition, tags, table, "was delivered again since this run was requested"
        )
    all_files = delivery(directory, partition, None, suffix)
    files = all_files.fingerprint if all_files else None
    if files != landing.get("files", files):
        raise _delivery_error(
            partition, tags, table, "has other files than when this run was requested"
        )
    return files


def _delivery_error(
    partition: str, tags: Mapping[str, str], table: str, problem: str
) -> SourceError:
    version = written_tag(tags, DELIVERY_TAG)
    return SourceError(
        f"the source partition {partition} of delivery {version} {problem}.",
        table=table,
        operation="reading a delivery",
        hint="The sensor requests a run for the delivery that is there once its marker is written "
        "or its sizes have settled: leave this run as it is. Where no sensor looks, tag a new run "
        "with that delivery.",
    )
