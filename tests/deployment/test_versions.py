"""The pairs of Spark and Delta are the same in code, packaging and documentation."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deltaweave._session import TESTED, line

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "versions.md").read_text()


def required(extra: str | None) -> dict[str, Requirement]:
    """What the installed package requires of pyspark and delta-spark."""
    found = map(Requirement, requires("deltaweave") or ())
    return {
        each.name: each
        for each in found
        if each.name in ("pyspark", "delta-spark")
        and ((each.marker is None) if extra is None else f'extra == "{extra}"' in str(each.marker))
    }


@pytest.mark.parametrize(("spark_release", "delta_release"), TESTED)
def test_a_tested_pair_can_be_installed(spark_release: str, delta_release: str) -> None:
    ranges = required(None)
    assert ranges["pyspark"].specifier.contains(spark_release)
    assert ranges["delta-spark"].specifier.contains(delta_release)


@pytest.mark.parametrize("spark_line", sorted({line(spark) for spark, _ in TESTED}))
def test_the_extra_of_a_spark_installs_a_tested_pair(spark_line: tuple[int, ...]) -> None:
    pins = required("spark{}{}".format(*spark_line))
    assert any(
        pins["pyspark"].specifier.contains(spark) and pins["delta-spark"].specifier.contains(delta)
        for spark, delta in TESTED
    )


def test_the_page_has_a_row_for_each_tested_pair_and_no_other() -> None:
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \| (\d+\.\d+\.\d+) \|", PAGE, re.MULTILINE)
    assert rows == list(TESTED)
