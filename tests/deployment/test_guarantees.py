"""The page of guarantees names, for each promise, tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
PROMISED, NOT_PROMISED = PAGE.split("## What is not promised")
# A promise is a row of a table: what is promised, and the tests that hold it.
PROMISES = [
    (promise, tests)
    for promise, tests in re.findall(r"^\| (.+?) \| (.+?) \|$", PROMISED, re.MULTILINE)
    if promise not in ("promise", "---")
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


def test_the_page_promises_something_in_every_section() -> None:
    sections = re.split(r"^## ", PROMISED, flags=re.MULTILINE)[1:]
    assert sections
    for section in sections:
        assert re.search(r"\| `", section), section.splitlines()[0]
