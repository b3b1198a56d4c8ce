"""The list of cases: the 16 of Delta's own merge benchmark, then further ones.

Delta's cases are in `benchmarks/` in the repository of Delta Lake (`MergeTestCases`). Here they
have the same names, fractions and clauses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.data.tables import Fractions, KeyType, Workspace, sql_name
from benchmarks.merge import further_tables, many_files
from benchmarks.merge.case import INSERT_ALL, UPSERT, Case, Merges, Statement

_CONDITION = "t.wr_order_number = s.wr_order_number AND t.wr_item_sk = s.wr_item_sk"
_DELETE = "WHEN MATCHED THEN DELETE"
_INSERT_EVEN_ITEMS = "WHEN NOT MATCHED AND s.wr_item_sk % 2 = 0 THEN INSERT *"

# Fractions of files, of matched rows and of not matched rows, in the order of Delta's list.
_INSERTS = (Fractions(0.05, 0.0, 0.05), Fractions(0.05, 0.0, 0.5), Fractions(0.05, 0.0, 1.0))
_DELETES = (Fractions(0.05, 0.05, 0.0),)
_UPSERTS = (
    Fractions(0.05, 0.1, 0.01),
    Fractions(0.05, 0.0, 0.1),
    Fractions(0.05, 0.01, 0.1),
    Fractions(0.05, 0.1, 0.0),
    Fractions(0.5, 0.01, 0.001),
    Fractions(1.0, 0.01, 0.001),
    Fractions(0.05, 0.5, 0.001),
    Fractions(0.05, 0.99, 0.001),
    Fractions(0.05, 1.0, 0.001),
)
_HALF_OF_THE_FILES = Fractions(0.5, 0.01, 0.001)
_SAME_FILES = Fractions(0.05, 0.01, 0.1)


class UnknownCaseError(ValueError):
    """No case has this name."""


def delta_cases() -> list[Case]:
    """Return the 16 cases of Delta's benchmark."""
    return [
        *(_of_delta("single_insert_only", "insert", each, INSERT_ALL) for each in _INSERTS),
        *(
            _of_delta("multiple_insert_only", "two inserts", each, _INSERT_EVEN_ITEMS, INSERT_ALL)
            for each in _INSERTS
        ),
        *(_of_delta("delete_only", "delete", each, _DELETE) for each in _DELETES),
        *(_of_delta("upsert", "upsert", each, *UPSERT) for each in _UPSERTS),
    ]


def further_cases() -> list[Case]:
    """Return cases that ask one question each and are not in the geometric mean."""
    return [
        Case("small_into_100k", "10 rows into 100,000", further_tables.small_into_100k),
        Case("small_into_partitions", "10 rows by partition", further_tables.small_into_partitions),
        *(
            Case(
                f"same_files_table_x{times}",
                f"same files, table x{times}",
                partial(_same_files, times=times),
            )
            for times in (1, 2, 4, 8)
        ),
        Case(
            "not_matched_by_source_one_partition",
            "by source, one partition",
            further_tables.not_matched_by_source_one_partition,
        ),
        *_with_features(),
        Case("fifth_of_the_rows", "a fifth of the rows", further_tables.fifth_of_the_rows),
        Case("random_uuid_keys", "random UUID keys", further_tables.random_uuid_keys),
        Case(
            "few_uuid_keys", "few UUID keys", partial(further_tables.few_uuid_keys, indexed=False)
        ),
        Case(
            "few_uuid_keys_indexed",
            "few UUID keys, indexed",
            partial(further_tables.few_uuid_keys, indexed=True),
        ),
        Case("thousand_partitions", "1,000 partitions", further_tables.thousand_partitions),
        Case("many_files_log", "many files", many_files.found_by_condition),
        Case(
            "many_files_log_by_key",
            "many files, by key",
            many_files.found_by_key,
            with_builtin=False,  # it would read all files, and only one of them exists
        ),
        Case(
            "plain_rewrite",
            "plain copy",
            partial(_web_returns, fractions=_HALF_OF_THE_FILES, clauses=UPSERT),
            with_rewrite=True,
        ),
        Case(
            "ten_merges_into_500_files",
            "10 merges into 500 files",
            further_tables.ten_merges_into_500_files,
        ),
        Case("hundred_merges", "100 merges in a row", further_tables.hundred_merges),
    ]


def _with_features() -> list[Case]:
    """Return upserts into tables with features, and one that moves rows to other partitions."""
    with_change_feed, with_row_tracking = (
        partial(_with_property, name=name, enabled=f"delta.enable{feature}")
        for name, feature in (("change-feed", "ChangeDataFeed"), ("row-tracking", "RowTracking"))
    )
    return [
        Case(
            "change_feed",
            "with a change feed",
            partial(_half_of_the_files, into=with_change_feed),
        ),
        Case(
            "row_tracking",
            "with row tracking",
            partial(_half_of_the_files, into=with_row_tracking),
        ),
        Case(
            "check_constraints",
            "with constraints",
            partial(_half_of_the_files, into=_with_constraints),
        ),
        Case("moves_partitions", "rows change partition", further_tables.moves_partitions),
    ]


def chosen(names: Sequence[str], cases: Sequence[Case]) -> list[Case]:
    """Return the cases with these names, in the order of the cases; Delta's 16 without names.

    Raises:
        UnknownCaseError: No case has one of the names.
    """
    if not names:
        return delta_cases()
    unknown = sorted(set(names) - {case.name for case in cases})
    if unknown:
        raise UnknownCaseError(f"No case is named {', '.join(unknown)}.")
    return [case for case in cases if case.name in names]


def _of_delta(kind: str, label: str, fractions: Fractions, *clauses: str) -> Case:
    # Delta's names contain only the fractions that the kind of case can vary.
    parts = [kind, f"fileMatchedFraction_{fractions.files_matched}"]
    if "insert_only" not in kind:
        parts.append(f"rowMatchedFraction_{fractions.rows_matched}")
    if kind != "delete_only":
        parts.append(f"rowNotMatchedFraction_{fractions.rows_not_matched}")
    return Case(
        "_".join(parts),
        f"{label} {fractions}",
        partial(_web_returns, fractions=fractions, clauses=clauses),
        is_deltas=True,
        title=_in_words(label, fractions),
    )


def _in_words(label: str, fractions: Fractions) -> str:
    """Return what a case does: `upsert: 1% of rows in 50% of files, 0.1% new`."""
    matched, new = (
        f"{share * 100:g}%" for share in (fractions.rows_matched, fractions.rows_not_matched)
    )
    files = f"{fractions.files_matched:.0%} of files"
    if not fractions.rows_matched:
        return f"{label}: {new} new rows for {files}"
    also_new = f", {new} new" if fractions.rows_not_matched else ""
    return f"{label}: {matched} of rows in {files}{also_new}"


def _web_returns(workspace: Workspace, *, fractions: Fractions, clauses: tuple[str, ...]) -> Merges:
    statement = _of_returns(workspace, fractions, clauses)
    return Merges(workspace.web_returns(), (statement,))


def _of_returns(
    workspace: Workspace,
    fractions: Fractions,
    clauses: tuple[str, ...],
    key_type: KeyType | None = None,
) -> Statement:
    source = workspace.web_returns_source(fractions, key_type or workspace.key_type)
    return Statement(sql_name(source), _CONDITION, clauses)


def _half_of_the_files(workspace: Workspace, *, into: Callable[[Workspace], Path]) -> Merges:
    """Upsert 0.5/0.01/0.001, as in Delta's benchmark, into another table of the same rows."""
    statement = _of_returns(workspace, _HALF_OF_THE_FILES, UPSERT)
    return Merges(into(workspace), (statement,))


def _same_files(workspace: Workspace, *, times: int) -> Merges:
    """Merge the same rows into the same files of a table that is `times` as large.

    Keys are integers, so that statistics can prune the other files.
    """
    statement = _of_returns(workspace, _SAME_FILES, UPSERT, key_type="integer")
    return Merges(further_tables.web_returns_times(workspace, times), (statement,))


def _with_property(workspace: Workspace, *, name: str, enabled: str) -> Path:
    """Return a table of the rows of web_returns with a property that is on."""

    def make(path: Path) -> None:
        workspace.write_delta(workspace.returns(), path, properties={enabled: "true"})

    return workspace.target(f"web_returns-{name}", make)


def _with_constraints(workspace: Workspace) -> Path:
    """Return web_returns with two constraints: of one column, and of two."""
    constraints = {
        "some_quantity": "wr_return_quantity IS NULL OR wr_return_quantity > 0",
        "tax_added": "coalesce(wr_return_amt_inc_tax >= wr_return_amt, true)",
    }

    def make(path: Path) -> None:
        workspace.write_delta(workspace.returns(), path)
        for name, condition in constraints.items():
            workspace.spark.sql(
                f"ALTER TABLE {sql_name(path)} ADD CONSTRAINT {name} CHECK ({condition})"
            )

    return workspace.target("web_returns-constraints", make)
