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


# A promise, with the tests that hold it in a list that opens; or, of security, a row of a table:
# what threatens, the answer, and its tests. Tables of guarantees are of what was counted.
PROMISE = re.compile(
    r"^- (.+?) <details><summary>\d+ tests?</summary>(.+)</details>$", re.MULTILINE
)
THREAT = re.compile(r"^\| (.+?) \| (.+) \|$", re.MULTILINE)
FORMS = {"guarantees.md": PROMISE, "security.md": THREAT}
PROMISES = [
    (promise, tests)
    for page, form in FORMS.items()
    for text in sections(page).values()
    for promise, tests in form.findall(text)
    if promise not in ("threat", "---")
]


@cache
def names_of_tests(module: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / module).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("promise", "tests"), PROMISES)
def test_a_promise_names_tests_that_exist(promise: str, tests: str) -> None:
    named = re.findall(r"(?:`|<code>)([\w/]+\.py)::(test_\w+)(?:`|</code>)", tests)
    assert named, promise
    for module, test in named:
        assert test in names_of_tests(module), f"{module}::{test}"


@pytest.mark.parametrize("page", PAGES)
def test_the_page_promises_something_in_every_section(page: str) -> None:
    assert sections(page)
    for title, text in sections(page).items():
        promised = PROMISE.search(text) if FORMS[page] is PROMISE else re.search(r"\| `", text)
        assert promised, title


def test_every_list_of_tests_follows_a_promise_and_says_how_many_they_are() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    assert len(PROMISE.findall(page)) == page.count("<details>") > 100
    for number, tests in re.findall(r"<summary>(\d+) tests?</summary>(.*)</details>", page):
        assert int(number) == tests.count("<code>"), tests
