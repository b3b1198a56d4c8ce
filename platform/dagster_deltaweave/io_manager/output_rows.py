"""What an asset's function returned, as the rows of Spark that are to be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.types import NullType

from dagster_deltaweave.io_manager import frames
from dagster_deltaweave.tables import Changes, ChangesOfPartitions
from deltaweave.delta.jvm import translated
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from dagster import AssetKey
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

ToRows: TypeAlias = "Callable[[Any], DataFrame | None]"
"""Gives the rows of a value; None if its type is unknown."""


def without_empty_partitions(output: Any, partitions: Sequence[str]) -> Any:
    """Drop the partitions for which the output has None; return None if it has no others.

    An empty dict is no output of a run without partitions, and is refused as such.
    """
    if not isinstance(output, Mapping) or not (output or partitions):
        return output
    return {key: rows for key, rows in output.items() if rows is not None} or None


def changes_of_output(
    to_rows: ToRows, output: Any, asset: AssetKey, partitions: Sequence[str]
) -> Changes:
    """Return the rows to store, of one table or of one for each partition of the run.

    Args:
        to_rows: Gives the rows of what it returned.
        output: What the asset's function returned.
        asset: The asset, for error messages.
        partitions: The run's partitions.

    Raises:
        SourceError: It is no table, it names a partition that the run does not have, or the rows of
            its partitions have different columns.
    """
    name = asset.to_user_string()
    if isinstance(output, Mapping) and output:
        parts = {key: _rows(to_rows, rows, name) for key, rows in output.items()}
        _check_partitions(parts, partitions, name)
        return ChangesOfPartitions(
            reduce(lambda one, other: one.unionByName(other), parts.values()), parts=parts
        )
    changes = output if isinstance(output, Changes) else Changes(output)
    return Changes(_rows(to_rows, changes.rows, name), changes.applied)


def _rows(to_rows: ToRows, output: Any, asset: str) -> DataFrame:
    with translated(asset, operation="storing", otherwise=SourceError):
        rows = to_rows(output)
    if rows is None:
        raise SourceError(
            f"the asset function returned {type(output).__name__}, which is not a table.",
            table=asset,
            operation="storing",
            hint=f"Return {frames.KNOWN}, or such as Changes, or None for no changes; of a run of "
            "several partitions, {partition key: such rows}.",
        )
    return rows


def _check_partitions(
    parts: Mapping[str, DataFrame], partitions: Sequence[str], asset: str
) -> None:
    unknown = [str(key) for key in parts if key not in partitions]
    if unknown:
        raise SourceError(
            f"the asset function returned rows of {', '.join(unknown)}, which are no partitions of "
            "this run.",
            table=asset,
            operation="storing",
            hint=f"The run has {', '.join(partitions) or 'no partitions'}: return rows of these.",
        )
    first, *others = parts
    types = {field.name.lower(): field.dataType for field in parts[first].schema}
    names = set(types)
    for key in others:
        differing = names ^ {name.lower() for name in parts[key].columns}
        if differing:
            raise SourceError(
                f"the rows of the partitions {first} and {key} differ in the columns "
                f"{', '.join(sorted(differing))}.",
                table=asset,
                operation="storing",
                hint="Return the same columns for each partition, or run them one by one.",
            )
        others_types = {f.name.lower(): f.dataType for f in parts[key].schema}
        unlike = [name for name, kind in types.items() if not _alike(kind, others_types[name])]
        if unlike:
            raise SourceError(
                f"the columns {', '.join(unlike)} have other types in the rows of the partition "
                f"{key} than in those of {first}.",
                table=asset,
                operation="storing",
                hint="Return the same types for each partition, or run them one by one.",
            )


def _alike(one: DataType, other: DataType) -> bool:
    """Return whether two types are the same; one of nulls alone is like any."""
    is_same = one.simpleString() == other.simpleString()
    return is_same or isinstance(one, NullType) or isinstance(other, NullType)
