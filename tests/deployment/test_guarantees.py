"""The pages of guarantees and of security name, for each answer, tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each page promises up to the section that says what it does not.
PAGES = {
    "guarantees.md": "## What is not promised",
    "security.md": "## What is not answered",
}
# Sections of what is given, not of what is promised.
WITHOUT_TESTS = ("What is trusted",)


def sections(page: str) -> dict[str, str]:
    """The sections of a page that promise something, by their titles."""
    promised = (ROOT / "docs" / page).read_text().split(PAGES[page])[0]
    found = [each.split("\n", 1) for each in re.split(r"^## ", promised, flags=re.MULTILINE)[1:]]
    return {title: text for title, text in found if title not in WITHOUT_TESTS}


# A row of a table: what is promised or threatens, perhaps the answer, and the tests that hold it.
PROMISES = [
    (promise, tests)
    for page in PAGES
    for text in sections(page).values()
    for promise, tests in re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE)
    if promise not in ("promise", "threat", "---")
]


@cache
def names_of_tests(module: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / module).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("promise", "tests"), PROMISES)
def test_a_promise_names_tests_that_exist(promise: str, tests: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", tests)
    assert named, promise
    for module, test in named:
        assert test in names_of_tests(module), f"{module}::{test}"


@pytest.mark.parametrize("page", PAGES)
def test_the_page_promises_something_in_every_section(page: str) -> None:
    assert sections(page)
    for title, text in sections(page).items():
        assert re.search(r"\| `", text), title
