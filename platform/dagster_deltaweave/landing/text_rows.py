"""Reads CSV and JSON of a source partition; errors name the lines that do not fit the schema."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from dagster_deltaweave.storage import file_system
from deltaweave.delta.log import STRICTLY
from deltaweave.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

FILE, RECORD, PROBLEMS = "__deltaweave_file", "__deltaweave_record", "__deltaweave_problems"
"""Columns beside those of the schema, see `TextFiles.rows`."""

_LONGEST = 100_000
"""Characters of a bad row that are kept: without its line ends, a file is one row."""

_LONGEST_SHOWN = 100

_OURS = frozenset(
    {
        *("mode", "columnnameofcorruptrecord", "columnpruning", "inferschema", "samplingratio"),
        *("path", "ignorecorruptfiles", "ignoremissingfiles"),
    }
)
# These say where rows begin and end, and a bad row is looked at by itself.
_OF_FILES = frozenset({"header", "multiline", "linesep", "encoding", "charset"})


@dataclass(frozen=True)
class TextFiles:
    """Files of CSV or JSON that must have the columns of one schema.

    Attributes:
        spark: The session that reads.
        format: What they are.
        schema: The columns of the files.
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
        """Return the columns in a file; those that the schema lacks are texts.

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

        Args:
            schemas: The files, each with its `schema_of`.

        Returns:
            The columns of the schema, and `FILE`; for a row that does not fit `RECORD`, its text,
            and `PROBLEMS`, the columns whose values do not fit, none of which is named if the row
            has another number of values or is no JSON object; both are null for other rows.
        """
        alike: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for file, schema in schemas.items():
            alike[tuple(schema.names)].append(file)
        parts = [self._of(schemas[files[0]], files) for files in alike.values()]
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
        """Select the rows that fit, with the columns of the schema.

        Args:
            rows: All rows, as `rows` returns them.
            others_are_errors: Whether another row is an error, or left out.
        """
        columns = list(map(quoted, self.schema.names))
        otherwise = F.lit(False)
        if others_are_errors:  # files were replaced since they were looked through
            said = F.concat(F.lit("a row does not fit the schema: "), F.col(RECORD))
            otherwise = F.raise_error(said).cast("boolean")
        # Of JSON Spark reads the columns that are asked for, and takes a row for bad by these; and
        # it refuses to read the records alone. This names all columns, by what is never true and
        # the optimizer does not know of.
        never = F.instr(F.to_json(F.struct(*columns)), "x") < 0
        fits = F.when(F.col(RECORD).isNull() | F.coalesce(never, F.lit(False)), F.lit(True))
        return rows.where(fits.otherwise(otherwise)).select(*columns)

    def described(self, file: str, record: str, columns: Sequence[str]) -> str:
        """Describe where a bad row is and which of its values do not fit."""
        line = self._line_of(file, record)
        types = [f"column {name} ({self.schema[name].dataType.simpleString()})" for name in columns]
        where = [_name(file), *([] if line is None else [f"line {line}"]), *types]
        if not types:
            wanted = "JSON object" if self.format == "json" else f"row of {len(self.schema)} values"
            where.append(f"no {wanted}")
        return f"{', '.join(where)}: {record[:_LONGEST_SHOWN]!r}"

    def _of(self, schema: StructType, files: Sequence[str]) -> DataFrame:
        reader = self._reader().schema(_with(schema, RECORD))
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

    def _is_bad(self, schema: StructType, name: str) -> Column:
        """Return whether a row does not fit for this column alone, and would if it were a text."""
        texts = StructType([StructField(each, StringType()) for each in schema.names])
        typed = StructType([schema[each] if each == name else texts[each] for each in schema.names])
        return self._parsed(typed).isNotNull() & self._parsed(texts).isNull()

    def _parsed(self, schema: StructType) -> Column:
        """Return the record if it does not fit this schema; else null."""
        options = {key: text for key, text in self.options.items() if key.lower() not in _OF_FILES}
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RECORD}
        whole = _with(schema, RECORD)
        if self.format == "csv":
            return F.from_csv(F.col(RECORD), whole.toDDL(), options)[RECORD]
        return F.from_json(F.col(RECORD), whole, options)[RECORD]

    def _line_of(self, file: str, record: str) -> int | None:
        """Return the number of a row's first line; None if the file cannot be read again."""
        first = record.splitlines()[0] if record else ""
        encoding = self._option("encoding", self._option("charset", "utf-8"))
        try:
            store, path = file_system(unquote(file))  # Spark's are URIs
            with store.open_input_stream(path) as stream:
                lines = io.TextIOWrapper(stream, encoding, errors="replace")
                return next((n for n, line in enumerate(lines, 1) if _begins(line, first)), None)
        except (OSError, ValueError, LookupError):
            return None

    def _reader(self) -> DataFrameReader:
        return self.spark.read.format(self.format).options(**self.options, **STRICTLY)

    def _option(self, name: str, otherwise: str) -> str:
        given = {key.lower(): text for key, text in self.options.items()}
        return given.get(name, otherwise).lower()


def _with(schema: StructType, text: str) -> StructType:
    return StructType([*schema.fields, StructField(text, StringType())])


def _name(file: str) -> str:
    return unquote(file.rsplit("/", 1)[-1])


def _begins(line: str, first: str) -> bool:
    return line.rstrip("\r\n")[:_LONGEST] == first
