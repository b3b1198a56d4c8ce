from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetsDefinition, AutomationCondition, Definitions
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from dagster_deltaweave import merge_asset
from deltaweave import Table

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "platform" / "ARCHITECTURE.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def _example(mark: str) -> str:
    (code,) = re.findall(rf"^```python {mark}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(code)


def _table(title: str) -> str:
    """The table drawn under the line `title`, as `DataFrame.show()` prints it."""
    (drawn,) = re.findall(rf"^{title}:\n\n```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(drawn)


def test_the_first_merge_gives_the_table_the_readme_shows(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(deltaweave, "local_session", lambda: spark)
    names: dict[str, object] = {}

    def run(code: str) -> str:
        exec(code.replace("/tmp/orders", str(tmp_path / "orders")), names)
        return capsys.readouterr().out.strip()

    for _ in range(2):  # whoever runs it again sees the same
        before = run(_example("setup") + "\norders.read().orderBy('id').show()")
        after = run(_example("merge"))

        assert before == _table("Before").strip()
        assert after == _table("After").strip()


def test_the_first_merge_is_under_ten_lines() -> None:
    assert len(_example("merge").splitlines()) < 10


def test_the_readme_is_read_in_one_go() -> None:
    assert len(README.splitlines()) <= 130


def test_the_asset_of_the_readme_is_merged(spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(_example("asset").replace("/tmp/lake", str(tmp_path)), names)
    defs: Definitions = names["defs"]
    for _ in range(2):  # the second run finds the rows merged
        done = defs.resolve_implicit_global_asset_job_def().execute_in_process()
        assert done.success
    table = Table(spark, str(tmp_path / "orders"))
    assert sorted(table.read().collect()) == [(2, "sent"), (5, "open")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in anchors, link


def test_the_tree_names_folders_that_exist() -> None:
    text = (ROOT / "docs" / "development.md").read_text()
    (tree,) = re.findall(r"^## The tree\n.*?^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    parents: list[str] = []
    for line in tree.splitlines():
        indent, path = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        parents[len(indent) // 2 :] = [path]
        assert ROOT.joinpath(*parents).exists(), line


def test_the_declarations_that_the_docs_show_are_assets() -> None:
    text = (Path(__file__).parents[2] / "docs" / "assets.md").read_text()
    codes = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names = {"merge_asset": merge_asset, "AutomationCondition": AutomationCondition}

    for code in codes:
        exec(code, {**names, "DataFrame": DataFrame}, names)

    customers, orders = names["customers"], names["orders"]
    assert isinstance(orders, AssetsDefinition)
    assert orders.metadata_by_key[orders.key]["schema"] == "sales"
    assert isinstance(customers, AssetsDefinition)
    assert {key.to_user_string() for key in customers.dependency_keys} == {"raw_customers"}
