from __future__ import annotations

import re
from pathlib import Path

import pytest
from dagster import AssetsDefinition, AutomationCondition
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from dagster_deltaweave import merge_asset

README = (Path(__file__).parents[2] / "README.md").read_text()


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

    before = run(_example("setup") + "\norders.read().orderBy('id').show()")
    after = run(_example("merge"))

    assert before == _table("Before").strip()
    assert after == _table("After").strip()


def test_the_first_merge_is_under_ten_lines() -> None:
    assert len(_example("merge").splitlines()) < 10


def test_the_tree_names_folders_that_exist() -> None:
    (tree,) = re.findall(r"^## The tree\n.*?^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    root = Path(__file__).parents[2]
    parents: list[str] = []
    for line in tree.splitlines():
        indent, path = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        parents[len(indent) // 2 :] = [path]
        assert root.joinpath(*parents).exists(), line


def test_the_declaration_that_the_docs_show_is_an_asset() -> None:
    text = (Path(__file__).parents[2] / "docs" / "assets.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names = {"merge_asset": merge_asset, "AutomationCondition": AutomationCondition}

    exec(code, {**names, "DataFrame": DataFrame}, names)

    customers = names["customers"]
    assert isinstance(customers, AssetsDefinition)
    assert {key.to_user_string() for key in customers.dependency_keys} == {"raw_customers"}
