"""The examples of docs/changes.md, run as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dagster
from pyspark.sql import DataFrame, SparkSession

import dagster_deltaweave
import deltaweave
from deltaweave import Table

GUIDE = Path(__file__).parents[2] / "docs" / "changes.md"


def test_the_examples_run_and_make_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    events = "id INT, name STRING, op STRING, lsn INT"
    after = {"op": "c", "after": {"id": 2, "name": "b"}, "source": {"lsn": 9}}
    landing = tmp_path / "landing"
    orders = spark.createDataFrame([(1, 10, "u", 1)], "id INT, pieces INT, op STRING, version INT")
    orders.write.json(str(landing))
    names: dict[str, Any] = {
        "deltaweave": deltaweave,
        "spark": spark,
        "events": spark.createDataFrame([(1, "a", "c", 2), (1, "late", "u", 1)], events),
        "kafka": spark.createDataFrame([(json.dumps(after), 0)], "value STRING, offset BIGINT"),
        "stream": spark.readStream.schema(orders.schema).json(str(landing)),
    }
    apply, debezium, merge_on_read, assets, reader = re.findall(
        r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )

    def run(code: str, lake: str) -> None:
        exec(code.replace("/lake", str(tmp_path / lake)), names)

    run(apply, "a")
    run(debezium, "b")
    found = [
        Table(spark, str(tmp_path / lake / "customers")).read().select("id", "name").collect()
        for lake in ("a", "b")
    ]
    assert [[tuple(row) for row in rows] for rows in found] == [[(1, "a")], [(2, "b")]]

    ingested = re.sub(r"(orders\.ingest\(.*\))", r"\1.awaitTermination()", merge_on_read)
    run(ingested, "c")
    assert [tuple(row) for row in spark.table("orders_now").collect()] == [(1, 10)]

    public = {name: getattr(dagster_deltaweave, name) for name in dagster_deltaweave.__all__}
    defined: dict[str, Any] = {**vars(dagster), **public, "DataFrame": DataFrame}
    exec(assets, defined)
    keys = {
        key.to_user_string() for key in defined["defs"].resolve_asset_graph().get_all_asset_keys()
    }
    assert keys == {"orders_changes", "orders_base", "orders"}
    exec(reader, defined)
    read = defined["report"].asset_deps[defined["report"].key]
    assert {key.to_user_string() for key in read} == {"orders", "orders_changes"}


def test_the_page_names_tests_that_exist() -> None:
    folder = Path(__file__).parents[1] / "deltaweave" / "changes"
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", GUIDE.read_text())
    assert len(named) > 20
    for module, test in named:
        assert f"def {test or 'test_'}" in (folder / module).read_text(), f"{module}::{test}"


def test_the_page_has_each_recipe_and_links_to_sections_that_exist() -> None:
    page = GUIDE.read_text()
    words = " ".join(page.split())
    for of in ("a failover", "a snapshot again", "a column that is added at the source"):
        assert f"ecipe for {of}:" in words, of
    assert "To correct them: 1. " in words
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= anchors
