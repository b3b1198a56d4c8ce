"""The clauses of a MERGE: one ordered list of condition and action, as the statement gives them.

Build them with the functions at the end, which are named like the builder's methods:

>>> from deltaweave import clauses
>>> clauses.when_matched_delete(condition="s.cancelled").kind
'matched'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import Column

Kind = Literal["matched", "not_matched", "not_matched_by_source"]
Action = Literal["update", "update_all", "delete", "insert", "insert_all"]


@dataclass(frozen=True)
class Clause:
    """A WHEN clause.

    Attributes:
        kind: Which rows it is for: target rows with a match, source rows without one, or target
            rows without one.
        action: What it does to a row that it takes.
        condition: A boolean SQL string or Column, or None for all rows of the kind.
        assignments: For `update` and `insert`: target column name to SQL string or Column.
    """

    kind: Kind
    action: Action
    condition: str | Column | None = None
    assignments: Mapping[str, str | Column] | None = None


def when_matched_update(
    set: Mapping[str, str | Column],
    condition: str | Column | None = None,
) -> Clause:
    """Update the named columns of target rows that a source row matches."""
    return Clause("matched", "update", condition, dict(set))


def when_matched_update_all(condition: str | Column | None = None) -> Clause:
    """Update every column of matched target rows from the source (`UPDATE SET *`)."""
    return Clause("matched", "update_all", condition)


def when_matched_delete(condition: str | Column | None = None) -> Clause:
    """Delete target rows that a source row matches."""
    return Clause("matched", "delete", condition)


def when_not_matched_insert(
    values: Mapping[str, str | Column], condition: str | Column | None = None
) -> Clause:
    """Insert source rows that match no target row, giving the named columns."""
    return Clause("not_matched", "insert", condition, dict(values))


def when_not_matched_insert_all(condition: str | Column | None = None) -> Clause:
    """Insert source rows that match no target row, all columns (`INSERT *`)."""
    return Clause("not_matched", "insert_all", condition)


def when_not_matched_by_source_update(
    set: Mapping[str, str | Column],
    condition: str | Column | None = None,
) -> Clause:
    """Update target rows that no source row matches."""
    return Clause("not_matched_by_source", "update", condition, dict(set))


def when_not_matched_by_source_delete(condition: str | Column | None = None) -> Clause:
    """Delete target rows that no source row matches."""
    return Clause("not_matched_by_source", "delete", condition)
