"""The examples of docs/changes.md and of the pages of its tasks, run as they stand."""

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

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    page: (DOCS / page).read_text()
    for page in (
        "changes.md",
        "how-to/debezium.md",
        "how-to/merge-on-read.md",
        "how-to/merge-on-read-assets.md",
        "how-to/events-put-aside.md",
        "how-to/columns-change.md",
        "how-to/another-log.md",
        "how-to/snapshots-again.md",
        "reference/debezium.md",
        "explanation/remembered-events.md",
        "explanation/merge-on-read.md",
    )
}
GUIDE = "\n".join(PAGES.values())


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
        r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL
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


def test_the_pages_name_tests_that_exist() -> None:
    folder = Path(__file__).parents[1] / "deltaweave" / "changes"
    named = re.findall(r"`([\w/]*test_\w+\.py)(?:::(test_\w+))?`", GUIDE)
    assert len(named) > 20
    for module, test in named:
        assert f"def {test or 'test_'}" in (folder / module).read_text(), f"{module}::{test}"


def test_the_pages_have_each_recipe_and_the_first_links_to_all_others() -> None:
    words = " ".join(GUIDE.split())
    for of in ("a failover", "a snapshot again", "a column that is added at the source"):
        assert f"ecipe for {of}:" in words, of
    assert "To correct them: 1. " in words
    first, *others = PAGES
    assert set(re.findall(r"\]\(([\w/-]+\.md)\)", PAGES[first])) >= {
        page
        for page in others
        if page != "explanation/merge-on-read.md"  # linked by its how-to
    }
