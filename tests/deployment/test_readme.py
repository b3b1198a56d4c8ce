from __future__ import annotations

import re
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetsDefinition, AutomationCondition, Definitions
from packaging.requirements import Requirement
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from dagster_deltaweave import merge_asset
from deltaweave import Table
from deltaweave._session import TESTED

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "platform" / "ARCHITECTURE.md",
    ROOT / "tests" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def _example(mark: str) -> str:
    (code,) = re.findall(rf"^```python {mark}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(code)


def _table() -> str:
    """The table that is drawn, as `DataFrame.show()` prints it."""
    (drawn,) = re.findall(r"^```\n(\+-.*?)^```$", README, re.MULTILINE | re.DOTALL)
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
        run(_example("setup"))
        assert run(_example("merge")) == _table().strip()


def test_the_first_merge_is_under_ten_lines() -> None:
    assert len(_example("merge").splitlines()) < 10


def test_the_readme_is_read_in_one_go() -> None:
    assert len(README.splitlines()) <= 130


def test_no_text_says_to_install_deltaweave_by_its_name_alone() -> None:
    # The name is on no registry: whoever takes it there could run code on a reader's machine. What
    # follows an @ is an address, or a variable that holds one.
    texts = [*PAGES, *(ROOT / "platform").rglob("*.py"), *(ROOT / "platform").rglob("*.template")]
    by_name = re.compile(r"""pip\s+install\s+["']?deltaweave(?!\[[\w,]+\] @ (?:git\+|\$))""")
    found = [text for text in texts if by_name.search(text.read_text())]
    assert found == []


def test_the_badges_say_what_is_tested() -> None:
    shown = {
        badge.stem: re.findall(r"<title>\w+: (.*)</title>", badge.read_text())[0]
        for badge in (ROOT / "docs" / "images" / "badges").glob("*.svg")
    }
    sparks = sorted({".".join(spark.split(".")[:2]) for spark, _ in TESTED})
    deltas = sorted({".".join(delta.split(".")[:2]) for _, delta in TESTED})
    python = metadata("deltaweave")["Requires-Python"].removeprefix(">=")
    [dagster] = [
        each
        for each in map(Requirement, requires("deltaweave") or ())
        if each.name == "dagster" and 'extra == "dagster"' in str(each.marker)
    ]
    lowest = min(each.version for each in dagster.specifier)
    assert shown == {
        "spark": " | ".join(sparks),
        "delta": " | ".join(deltas),
        "python": f"{python} or newer",
        "dagster": f"{lowest} or newer",
        "licence": "Apache 2.0",
    }


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_item_or_row_of_a_table_is_on_a_page_twice(page: Path) -> None:
    if page.name == "comparison-sources.md":  # one source for several rows
        return
    # Where two branches wrote the same, a merge may keep both.
    rows = re.findall(r"^ *((?:- |\| ).{60,})$(?!\n *\| ---)", page.read_text(), re.MULTILINE)
    assert [row for row in rows if rows.count(row) > 1] == []


def test_each_change_is_one_line_of_the_changelog() -> None:
    files = [*(ROOT / "changelog.d").glob("*.md")]
    # Others are left out of the changelog.
    assert [file.name for file in files if not file.name.endswith(".change.md")] == []
    texts = [file.read_text() for file in files]
    assert [text for text in texts if len(text.splitlines()) > 1 or len(text.split()) > 60] == []


def test_the_tree_names_folders_that_exist() -> None:
    text = (ROOT / "docs" / "development.md").read_text()
    (tree,) = re.findall(r"^## The tree\n.*?^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    parents: list[str] = []
    for line in tree.splitlines():
        indent, path = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        parents[len(indent) // 2 :] = [path]
        assert ROOT.joinpath(*parents).exists(), line


def test_the_recipes_of_contributing_name_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:platform|tests|docs)/[^`]+)`", text))
    assert len(named) > 20
    assert {each for each in named if not (ROOT / each).exists()} == set()


def test_the_page_of_tests_names_each_helper_family_and_marker() -> None:
    page = (ROOT / "tests" / "README.md").read_text()
    named = set(re.findall(r"`([^`\n]+)`", page))
    for path in [*named]:
        assert not path.startswith("tests/") or (ROOT / path).exists(), path
    helpers = {file.stem for file in (ROOT / "tests" / "support").glob("[a-z]*.py")}
    cases = (ROOT / "tests" / "merge_cases").glob("[a-z]*.py")
    families = {file.stem for file in cases if "\nCASES" in file.read_text()}
    listed = (ROOT / "pyproject.toml").read_text().split("markers = [")[1]
    markers = set(re.findall(r'^  "(\w+): ', listed, re.MULTILINE))
    assert len(helpers) > 20 < len(families)
    assert (helpers | families | markers) - named == set()


def test_the_declarations_that_the_docs_show_are_assets() -> None:
    pages = ("assets.md", "how-to/tables-in-a-schema.md")
    text = "".join((ROOT / "docs" / page).read_text() for page in pages)
    codes = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names = {"merge_asset": merge_asset, "AutomationCondition": AutomationCondition}

    for code in codes:
        exec(code, {**names, "DataFrame": DataFrame}, names)

    customers, orders = names["customers"], names["orders"]
    assert isinstance(orders, AssetsDefinition)
    assert orders.metadata_by_key[orders.key]["schema"] == "sales"
    assert isinstance(customers, AssetsDefinition)
    assert {key.to_user_string() for key in customers.dependency_keys} == {"raw_customers"}
