"""What the metadata of an input asks for: some columns, a version of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltaweave.errors import SourceError
from deltaweave.identifiers import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "columns"
"""Metadata key of an input, Dagster's own: names of the columns that it has."""

VERSION = "deltaweave/version"
"""Metadata key of an input: the version of the table that it reads."""


@dataclass(frozen=True)
class InputOptions:
    """The options of one input.

    Attributes:
        name: The input's name, for error messages.
        table: The table, for error messages.
        columns: The columns that it has, in this order; None for all.
        version: The version that it reads; None for the newest.
    """

    name: str
    table: str
    columns: tuple[str, ...] | None = None
    version: int | None = None

    def refuse_if_given(self, why: str) -> None:
        """Raise a SourceError if a version or columns are given where neither makes sense.

        Args:
            why: The sentence that says why, without a full stop.
        """
        given = {COLUMNS: self.columns, VERSION: self.version}
        for key, value in given.items():
            if value is not None:
                raise self._error(f"{key} cannot be followed, because {why}", f"Leave {key} out.")

    def select(self, rows: DataFrame) -> DataFrame:
        """Select the columns that are asked for.

        Raises:
            SourceError: The rows lack one of them.
        """
        if self.columns is None:
            return rows
        is_exact = rows.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
        known = set(rows.columns) if is_exact else {name.lower() for name in rows.columns}
        missing = [
            name for name in self.columns if (name if is_exact else name.lower()) not in known
        ]
        if missing:
            raise self._error(
                f"the table lacks the columns {', '.join(missing)}",
                f"It has {', '.join(rows.columns)}.",
            )
        return rows.select(*(column(name) for name in self.columns))

    def _error(self, problem: str, hint: str) -> SourceError:
        return SourceError(
            f"the metadata of the input {self.name} is invalid: {problem}.",
            table=self.table,
            operation="READ",
            state="Nothing was read.",
            hint=hint,
        )


def input_options(metadata: Mapping[str, Any], name: str, table: str) -> InputOptions:
    """Read the options in the metadata of an input.

    Args:
        metadata: The metadata of the input's definition.
        name: The input's name.
        table: The upstream table.

    Raises:
        SourceError: An option has a value that makes no sense.
    """
    asked = InputOptions(name, table)
    columns, version = _plain(metadata.get(COLUMNS)), _plain(metadata.get(VERSION))
    if columns is not None and (
        not isinstance(columns, (list, tuple))
        or not columns
        or not all(isinstance(each, str) for each in columns)
    ):
        raise asked._error(
            f"{COLUMNS} is {columns!r}", 'Give the names as a list: {"columns": ["id", "state"]}.'
        )
    if version is not None and (
        isinstance(version, bool) or not isinstance(version, int) or version < 0
    ):
        raise asked._error(f"{VERSION} is {version!r}", "Give the number of a version, as 0 or 12.")
    return InputOptions(name, table, None if columns is None else tuple(columns), version)


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)  # of a MetadataValue
