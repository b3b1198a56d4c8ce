"""ARCHITECTURE.md and the pages of internals name modules and functions that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLATFORM = ROOT / "platform"
ROOTS = [PLATFORM / "deltaweave", PLATFORM / "dagster_deltaweave", PLATFORM, ROOT]
PAGE = PLATFORM / "ARCHITECTURE.md"
INTERNALS = [
    *sorted((ROOT / "docs" / "internals").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
QUOTED = re.compile(r"`([^`]+)`")
# Application ids look like paths, too; they begin with `deltaweave/`.
A_MODULE = re.compile(r"(?!deltaweave/)[a-z_]+(?:/[a-z_]+)+(?:\.py)?")


def rows() -> Iterator[tuple[str, str]]:
    """What the walks and "Where do I change…" say is where: texts of the two columns."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3:
            if cells[0].isdigit():
                yield cells[1], cells[2]
            elif QUOTED.search(cells[1]):
                yield cells[0], cells[1]


def modules(where: str) -> list[Path]:
    """The Python files of all that a cell names: modules, packages, or another file (none)."""
    found: list[Path] = []
    for name in QUOTED.findall(where):
        if not name[0].islower():  # a constant
            continue
        places = [place for root in ROOTS for place in (root / f"{name}.py", root / name)]
        here = next((place for place in places if place.exists()), None)
        assert here is not None, f"there is no {name}"
        found += sorted(here.rglob("*.py")) if here.is_dir() else [here]
    return [file for file in found if file.suffix == ".py"]


def names_in(module: Path) -> set[str]:
    """Names that a module defines or uses."""
    names = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return names


@pytest.mark.parametrize(("what", "where"), list(rows()))
def test_what_the_page_names_is_where_it_says(what: str, where: str) -> None:
    known = set().union(*map(names_in, modules(where)))
    words = {part for name in QUOTED.findall(what) for part in name.split(".")}
    assert {word for word in words if word.isidentifier()} <= known


@pytest.mark.parametrize("page", INTERNALS, ids=lambda page: page.stem)
def test_modules_that_internals_and_decisions_name_exist(page: Path) -> None:
    for name in filter(A_MODULE.fullmatch, QUOTED.findall(page.read_text())):
        modules(f"`{name.removesuffix('.py')}`")
