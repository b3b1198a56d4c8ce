"""Each promise of the pages of guarantees and of security has tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
# Each page promises up to the section that says what it does not.
PAGES = {
    "guarantees.md": "## What is not promised",
    "security.md": "## What is not answered",
}
# Sections of what is given and of what to do, not of what is promised.
WITHOUT_TESTS = ("What is trusted", "What to do")
# A promise is the bold sentence that an item begins with; or, of security, a row of a table: what
# threatens, and the answer.
PROMISE = re.compile(r"^- \*\*(.+?)\*\*", re.MULTILINE)
THREAT = re.compile(r"^\| (?!threat \||--- \|)(.+?) \| .+ \|$", re.MULTILINE)
FORMS = {"guarantees.md": PROMISE, "security.md": THREAT}
# By page, then promise: what its tests show.
TESTS: dict[str, dict[str, dict[str, list[str]]]] = tomllib.loads(
    (ROOT / "tests" / "guarantees.toml").read_text()
)
PROMISES = [
    (promise, named)
    for promises in TESTS.values()
    for promise, shown in promises.items()
    for named in shown.values()
]


def sections(page: str) -> dict[str, str]:
    """The sections of a page that promise something, by their titles."""
    promised = (ROOT / "docs" / page).read_text().split(PAGES[page])[0]
    found = [each.split("\n", 1) for each in re.split(r"^## ", promised, flags=re.MULTILINE)[1:]]
    return {title: text for title, text in found if title not in WITHOUT_TESTS}


@cache
def names_of_tests(module: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / module).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("promise", "tests"), PROMISES)
def test_a_promise_names_tests_that_exist(promise: str, tests: list[str]) -> None:
    assert tests, promise
    assert len(set(tests)) == len(tests), promise
    for each in tests:
        module, _, test = each.partition("::")
        assert test.startswith("test_"), each
        assert test in names_of_tests(module), each


@pytest.mark.parametrize("page", PAGES)
def test_the_page_promises_something_in_every_section(page: str) -> None:
    assert sections(page)
    for title, text in sections(page).items():
        assert FORMS[page].search(text), title


@pytest.mark.parametrize("page", PAGES)
def test_the_promises_of_a_page_are_those_that_have_tests(page: str) -> None:
    promises = [each for text in sections(page).values() for each in FORMS[page].findall(text)]
    assert promises == list(TESTS[page])
    assert len(set(promises)) == len(promises)


def test_no_item_of_the_guarantees_is_without_a_promise() -> None:
    for text in sections("guarantees.md").values():
        assert len(PROMISE.findall(text)) == len(re.findall(r"^- ", text, re.MULTILINE))


def test_a_reader_can_scan_the_promises_and_each_says_what_its_tests_show() -> None:
    guarantees = TESTS["guarantees.md"]
    assert 40 <= len(guarantees) <= 60
    assert sum(map(len, guarantees.values())) > 100
    assert all(promise.endswith(".") for promise in guarantees)
