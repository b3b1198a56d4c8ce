"""The reference pages list what the code has, and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dagster_deltaweave
import deltaweave
from dagster_deltaweave.metadata.metadata_entries import MERGE_COUNTS, PHASE_TIMES, WRITE_COUNTS
from dagster_deltaweave.tables.metadata_declarations import METADATA_ENTRIES
from deltaweave import errors
from deltaweave.delta.commit.table_lock import DEFAULT_LOCK_TIMEOUT_SECONDS, LOCK_TIMEOUT
from deltaweave.engine import limits
from deltaweave.engine.report import MERGE_METRICS, NAMES_BY_ATTRIBUTE, StrategyName

ROOT = Path(__file__).parents[2]
PLATFORM = ROOT / "platform"
REFERENCE = ROOT / "docs" / "reference"

GROUPS = "merge|write|table|touched|rematerialize|changes|stream|commit|check|upkeep|deltaweave"
KEY = re.compile(rf"(?:{GROUPS})/[a-z_]+(?:/[a-z_]+)?")
SETTING = re.compile(r"spark\.deltaweave\.[A-Za-z.]+")

# Keys that the code puts together: no constant of it holds them.
PUT_TOGETHER = {
    "touched/added_files",
    "touched/removed_files",
    # The numbers of deltaweave.maintenance, which knows nothing of Dagster's keys.
    "upkeep/bytes",
    "upkeep/bytes_added",
    "upkeep/bytes_removed",
    "upkeep/deleted_row_fraction",
    "upkeep/deleted_rows",
    "upkeep/files",
    "upkeep/files_added",
    "upkeep/files_deleted",
    "upkeep/files_indexed",
    "upkeep/files_removed",
    "upkeep/files_without_statistics",
    "upkeep/retention_hours",
    "upkeep/rows_purged",
    "upkeep/side_tables/files_added",
    "upkeep/side_tables/files_deleted",
    "upkeep/side_tables/files_removed",
    "upkeep/small_files",
    "upkeep/unclustered_files",
    *(f"deltaweave/{entry}" for entry in METADATA_ENTRIES),
}


def rows(page: str) -> list[list[str]]:
    """The cells of a page's table rows whose first cell is code."""
    lines = (REFERENCE / page).read_text().splitlines()
    of_tables = [line for line in lines if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in of_tables]


def first_cells(page: str) -> list[str]:
    return [row[0].strip("`") for row in rows(page)]


def parsed(folder: str, word: str) -> Iterator[ast.Module]:
    """The modules of a folder that have a word in their text."""
    for module in sorted((PLATFORM / folder).rglob("*.py")):
        source = module.read_text()
        if word in source:
            yield ast.parse(source)


def texts(folder: str, word: str) -> Iterator[str]:
    """The strings in the code of such modules, without docstrings and parts of f-strings."""
    for tree in parsed(folder, word):
        not_values = {
            id(child)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Expr, ast.JoinedStr))
            for child in ast.iter_child_nodes(node)
        }
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in not_values:
                yield node.value


def test_the_page_of_metadata_lists_every_key_once() -> None:
    in_code = {text for text in texts("dagster_deltaweave", "/") if KEY.fullmatch(text)}
    listed = [name for name in first_cells("metadata.md") if "/" in name]
    assert sorted(listed) == sorted(in_code | PUT_TOGETHER)


def test_the_page_of_metadata_names_every_strategy_once() -> None:
    [listed] = [row[1] for row in rows("metadata.md") if row[0] == "`merge/strategy`"]
    assert sorted(re.findall(r"`([a-z-]+)`", listed)) == sorted(each.value for each in StrategyName)


def test_the_page_of_metadata_says_which_of_deltas_counts_a_key_holds() -> None:
    named = {**MERGE_COUNTS, **PHASE_TIMES, **WRITE_COUNTS}
    shown = {row[0].strip("`"): row[1] for row in rows("metadata.md")}
    assert {key: shown[key] for key in named} == {key: f"`{name}`" for key, name in named.items()}


def test_the_page_of_metadata_lists_every_metric_as_the_code_describes_it() -> None:
    listed = {tuple(row) for row in rows("metadata.md") if "/" not in row[0]}
    attributes = {name: attribute for attribute, name in NAMES_BY_ATTRIBUTE.items()}
    assert listed == {
        (f"`{name}`", f"`{attributes[name]}`", text) for name, text in MERGE_METRICS.items()
    }


def test_the_page_of_settings_lists_every_setting_once() -> None:
    in_code = {text for text in texts("", "spark.deltaweave.") if SETTING.fullmatch(text)}
    assert sorted(first_cells("settings.md")) == sorted(in_code)


def defaults_in_code() -> Iterator[tuple[str, str]]:
    """Settings, and the texts that the code reads where they are not set."""
    for tree in parsed("deltaweave", "spark.deltaweave."):
        settings = {
            each.targets[0].id: each.value.value
            for each in tree.body
            if isinstance(each, ast.Assign)
            and isinstance(each.targets[0], ast.Name)
            and isinstance(each.value, ast.Constant)
            and SETTING.fullmatch(str(each.value.value))
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                setting = settings.get(ast.unparse(node.args[0]))
                default = node.args[1] if len(node.args) > 1 else None
                if setting and isinstance(default, ast.Constant) and default.value is not None:
                    yield str(setting), str(default.value)


def test_the_page_of_settings_has_the_defaults_of_the_code() -> None:
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows("settings.md")}
    of_merges = "spark.deltaweave.merge"
    read = {key: value for key, value in defaults_in_code() if key.startswith(of_merges)}
    assert read.keys() == {f"{of_merges}.onDriver", f"{of_merges}.rewriteInPlace"}
    assert {key: shown[key] for key in read} == read
    assert int(shown[f"{of_merges}.maxCommitAttempts"]) == limits.DEFAULT_COMMIT_ATTEMPTS
    assert int(shown[LOCK_TIMEOUT]) == DEFAULT_LOCK_TIMEOUT_SECONDS
    assert float(shown[f"{of_merges}.maxMarkedFraction"]) == limits.DEFAULT_MAX_MARKED_FRACTION


def test_the_page_of_errors_lists_every_class_and_whether_to_retry() -> None:
    classes = {
        name: "yes" if issubclass(each, errors.Transient) else "no"
        for name, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.DeltaweaveError) and each is not errors.DeltaweaveError
    }
    assert {row[0].strip("`"): row[1] for row in rows("errors.md")} == classes
    assert errors.__doc__ is not None
    assert set(re.findall(r"[├└]── (\w+)", errors.__doc__)) == set(classes)


@pytest.mark.parametrize(
    ("page", "package"),
    [("deltaweave.md", deltaweave), ("dagster-deltaweave.md", dagster_deltaweave)],
    ids=lambda each: str(each),
)
def test_the_pages_of_the_api_have_every_public_name_once(page: str, package: object) -> None:
    assert inspect.ismodule(package)
    listed = re.findall(r"^::: (\S+)$", (REFERENCE / page).read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(f"{package.__name__}.{name}" for name in package.__all__)
