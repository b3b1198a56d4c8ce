"""The examples in docstrings: those that show an outcome have it, and all can be read by Python."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

PLATFORM = Path(__file__).parents[2] / "platform"
MODULES = [
    ".".join(module.relative_to(PLATFORM).with_suffix("").parts).removesuffix(".__init__")
    for module in sorted(PLATFORM.rglob("*.py"))
    if ">>>" in module.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(spark: SparkSession, name: str) -> None:
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name)
    for each in found:
        for example in each.examples:
            compile(example.source, each.name, "exec")
        if any(example.want for example in each.examples):
            failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(each).failed
            assert not failed, each.name
