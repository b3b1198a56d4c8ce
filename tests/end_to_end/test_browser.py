"""The demo lake's deployment as `make ui` serves it, used through its pages in a real browser."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterRunStatus, MetadataValue
from playwright.sync_api import FloatRect, Locator, Page, ViewportSize, expect, sync_playwright

from assets.demo_data import SCHEMA
from tests.end_to_end.running import ROOT, RunningDagster, running_dagster

pytestmark = pytest.mark.minutes

MONTHS = ["2003-01", "2003-02", "2003-03", "2003-04"]
REFUSED_MONTH = "2003-05"  # has two rows for some keys
ROWS = 2_000

SENSOR = "/locations/assets.definitions/sensors/web_returns_landed"

WIDTH, HEIGHT = 1440, 900
NAVIGATION = 240
MARGIN = 12

# As `make demo` does, without its data.
DEMO_RUNS = """
from dagster import DagsterInstance
from assets.demo_runs import execute, requested_runs

with DagsterInstance.get() as instance:
    for request in requested_runs(instance):
        execute(instance, request)
"""
# Descriptions, statements and errors name the lake's tables: it is shown as /lake, wherever it is.
WITHOUT_PATHS_OF_THIS_MACHINE = """
pattern => {
  // A highlighted statement has a path in several texts.
  for (const code of document.querySelectorAll("code"))
    if (new RegExp(pattern).test(code.textContent))
      code.textContent = code.textContent.replace(new RegExp(pattern, "g"), "/lake");
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    texts.currentNode.nodeValue =
      texts.currentNode.nodeValue.replace(new RegExp(pattern, "g"), "/lake");
}
"""
# What the pages show while they load.
LOADING = "[class*='Skeleton_skeleton'], [class*='Spinner_spinner'], [class*='bp5-spinner']"
# What makes it start at once and call nobody.
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def land(lake: Path, month: str, *, twice: int = 0) -> None:
    """Land a month: new returns, the more the later, and corrections of the month before.

    Args:
        lake: The lake.
        month: The month.
        twice: How many of its rows come twice.
    """
    place = [*MONTHS, REFUSED_MONTH].index(month)
    corrected = range(ROWS * (place - 1), ROWS * (place - 1) + 100 * place) if place else range(0)
    orders = [*corrected, *range(ROWS * place, ROWS * place + ROWS // 2 + 200 * place)]
    draw = random.Random(month)
    columns = {}
    for field in SCHEMA:
        number = Decimal if pa.types.is_decimal(field.type) else int
        columns[field.name] = pa.array([number(draw.randrange(1, 36)) for _ in orders], field.type)
    columns["wr_order_number"] = pa.array(orders, pa.int64())
    columns["wr_item_sk"] = pa.array([1] * len(orders), pa.int32())
    # A return keeps its date: that of the month in which it first landed.
    days = [2452641 + 30 * (order // ROWS) for order in orders]
    columns["wr_returned_date_sk"] = pa.array(days, pa.int32())
    op = ["delete" if order in corrected and order % 5 == 0 else "upsert" for order in orders]
    directory = lake / "landing" / "web_returns" / month
    directory.mkdir(parents=True)
    table = pa.table([*columns.values(), op], [*columns, "op"])
    table = pa.concat_tables([table, table.slice(table.num_rows - twice)])
    pq.write_table(table, directory / "part-0.parquet")
    (directory / "_SUCCESS").touch()


def environment_of(lake: Path) -> dict[str, str]:
    return {"DELTAWEAVE_LAKE": str(lake), "DELTAWEAVE_ENV": "local"}


def in_repository(lake: Path, *command: str) -> None:
    variables = {**os.environ, "DAGSTER_HOME": str(lake / "dagster"), **environment_of(lake)}
    subprocess.run(command, cwd=ROOT, env=variables, check=True)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def without_runs(lake: Path) -> Iterator[RunningDagster]:
    """A deployment in which nothing has run yet."""
    home = lake / "dagster"
    in_repository(lake, "make", "--silent", f"DAGSTER_HOME={home}", f"{home}/dagster.yaml")
    with running_dagster(
        lambda port: ["make", "ui", f"PORT={port}", f"DAGSTER_HOME={home}"],
        home,
        location="assets.definitions",
        settings=(home / "dagster.yaml").read_text(),
        environment=environment_of(lake),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def page_before_runs(without_runs: RunningDagster, page: Page) -> str:
    """What an asset's page shows before its first run."""
    page.goto(f"{without_runs.url}/assets/returns_by_reason?view=overview")
    expect(page.get_by_text("Never materialized").first).to_be_visible()
    expect(page.get_by_text("merge/statement", exact=True)).to_be_visible()
    text = page.inner_text("body")
    with tall(page):
        last = page.get_by_text("deltaweave/merge", exact=True)
        screenshot(
            page,
            "asset",
            clip=between(page, page.get_by_text("Status", exact=True).first, last, right=1076),
        )
    return text


@pytest.fixture(scope="module")
def dagster(lake: Path, without_runs: RunningDagster, page_before_runs: str) -> RunningDagster:
    """The deployment, once the first month is merged and others have landed."""
    assert page_before_runs
    land(lake, MONTHS[0])
    in_repository(lake, sys.executable, "-c", DEMO_RUNS)
    for month in MONTHS[1:]:
        land(lake, month)
    return without_runs


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    assert executable, "this test needs Chromium (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_OPTIONS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield page
        browser.close()


def settle(page: Page) -> None:
    """Wait until the page has loaded and its text, except times, stays for two seconds."""
    before, unchanged = "", 0
    for _ in range(240):
        now = re.sub(r"\d+", "", page.inner_text("body"))
        is_loading = page.locator(LOADING).filter(visible=True).count() or "Loading" in now
        unchanged = unchanged + 1 if now == before and not is_loading else 0
        if unchanged == 8:
            return
        before = now
        page.wait_for_timeout(250)


@contextmanager
def tall(page: Page) -> Iterator[None]:
    """Make the window so high that a page is shown without its scroll bars."""
    page.set_viewport_size({"width": WIDTH, "height": 3_600})
    try:
        yield
    finally:
        page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


def between(
    page: Page, first: Locator, last: Locator, *, left: int = NAVIGATION, right: int = WIDTH
) -> FloatRect:
    """Return the part of the page from one element to above another."""
    settle(page)
    expect(first).to_be_visible()
    expect(last).to_be_visible()
    top, bottom = first.bounding_box(), last.bounding_box()
    assert top is not None
    assert bottom is not None
    start = max(0, top["y"] - MARGIN / 3)
    return {"x": left, "y": start, "width": right - left, "height": bottom["y"] - MARGIN - start}


def screenshot(page: Page, name: str, *, clip: FloatRect | None = None) -> None:
    """Keep what is seen, where the variable says: `make screenshots` makes those of the docs."""
    directory = os.environ.get("DELTAWEAVE_SCREENSHOTS")
    if directory:
        settle(page)
        page.wait_for_timeout(1_500)  # until nothing moves any more
        page.evaluate(WITHOUT_PATHS_OF_THIS_MACHINE, f"{tempfile.gettempdir()}/\\S*?/lake\\d*")
        assert tempfile.gettempdir() not in page.inner_text("body")
        whole: FloatRect = {"x": NAVIGATION, "y": 0, "width": WIDTH - NAVIGATION, "height": HEIGHT}
        page.screenshot(path=Path(directory) / f"{name}.png", clip=clip or whole)


def folded(text: str) -> str:
    return " ".join(text.split())


def test_an_asset_shows_columns_and_statement_before_its_first_run(page_before_runs: str) -> None:
    text = folded(page_before_runs)
    for column in ("wr_reason_sk int", "returns bigint", "quantity bigint"):
        assert column in text
    assert "How many returns there are" in text
    # The page breaks the statement into lines, none of which is cut off.
    assert "MERGE INTO returns_by_reason AS t USING changes AS s" in text
    assert "ON t.wr_reason_sk <=> s.wr_reason_sk" in text
    assert "WHEN MATCHED AND (t.returns + s.returns = 0) THEN DELETE" in text


def test_runs_of_the_demo_are_in_the_timeline_and_on_the_page_of_their_job(
    dagster: RunningDagster, page: Page
) -> None:
    [run] = dagster.runs(dagster_partition=MONTHS[0])
    assert run.status == DagsterRunStatus.SUCCESS, dagster.errors()

    page.goto(f"{dagster.url}/locations/assets.definitions/jobs/merge_web_returns/runs")
    expect(page.get_by_text(run.run_id[:8]).first).to_be_visible(timeout=60_000)
    page.goto(f"{dagster.url}/overview/activity/timeline")
    listed = page.get_by_role("link", name="merge_web_returns").first
    expect(listed).to_be_visible(timeout=60_000)
    # Nothing lies over the page, and its log says how long Spark took to start.
    expect(page.get_by_role("dialog")).to_have_count(0)
    said = [each.user_message for each in dagster.instance.all_logs(run.run_id)]
    start = said.index("Attaching to the warm Spark driver, which starts if there is none.")
    assert re.fullmatch(r"Spark is ready after \d+\.\d s\.", said[start + 1])


def test_the_pages_show_graph_sensor_run_and_merge_metrics(
    lake: Path, dagster: RunningDagster, page: Page
) -> None:
    # The sensor is switched on, ticks, and what landed is merged month by month.
    page.goto(f"{dagster.url}{SENSOR}")
    page.get_by_role("row", name="Running").locator("label, button").first.click()
    for month in MONTHS[1:]:
        run = dagster.requested(month)
        assert dagster.finished(run.run_id).status == DagsterRunStatus.SUCCESS, dagster.errors()
    expect(page.get_by_role("button", name="3 runs requested")).to_be_visible()

    _look_at_lineage(dagster, page)
    _look_at_merge(dagster, page)

    _look_at_sensor(dagster, page)
    _materialize_from_page(dagster, page)
    _look_at_failure(lake, dagster, page)


def _look_at_lineage(dagster: RunningDagster, page: Page) -> None:
    """The graph shows where the table comes from and what is made from it."""
    assert page.context.browser is not None
    window: ViewportSize = {"width": WIDTH, "height": HEIGHT}
    # Its texts are small.
    sharp = page.context.browser.new_page(viewport=window, device_scale_factor=2)
    sharp.goto(f"{dagster.url}/asset-groups")
    for name in ("web_returns_landing", "web_returns", "returns_by_reason"):
        node = sharp.get_by_text(name, exact=True).filter(visible=True).last
        expect(node).to_be_visible(timeout=60_000)
    settle(sharp)
    place = node.bounding_box()
    assert place is not None
    right_of_list = 556
    clip: FloatRect = {"x": right_of_list, "y": place["y"] - 30, "width": 830, "height": 170}
    screenshot(sharp, "lineage", clip=clip)
    sharp.close()


def _look_at_merge(dagster: RunningDagster, page: Page) -> None:
    """What a merge did is on the asset's page: its summary first, its statement as a whole."""
    metadata = _last_metadata(dagster)
    page.goto(f"{dagster.url}/assets/web_returns?view=events")
    entries = page.locator("table").filter(has_text="merge/summary")
    expect(entries.get_by_role("row").first).to_contain_text("merge/summary")
    expect(entries).to_contain_text(str(metadata["merge/summary"].value))
    statement = re.sub(r"```(sql)?", "", str(metadata["merge/statement"].value))
    assert folded(statement) in folded(page.inner_text("body"))
    with tall(page):
        settle(page)
        heading = page.get_by_text(re.compile("materialized in run")).filter(visible=True).first
        last = page.get_by_text("merge/metrics", exact=True).filter(visible=True).first
        screenshot(page, "merge", clip=between(page, heading, last, left=541))

        page.goto(f"{dagster.url}/assets/web_returns?view=overview")
        page.get_by_text("Plots", exact=True).first.click()
        first = page.get_by_text("dagster/row_count", exact=True).filter(visible=True).first
        expect(first).to_be_visible()
        expect(page.locator("canvas").first).to_be_visible()
        last = page.get_by_text("merge/source_rows", exact=True).first
        screenshot(page, "plots", clip=between(page, first, last, right=1076))


def _look_at_sensor(dagster: RunningDagster, page: Page) -> None:
    """A tick that requests nothing says why."""
    page.goto(f"{dagster.url}{SENSOR}")
    # As its status and its result: a tick under way has none of the two.
    row = page.get_by_role("row").filter(has_text=re.compile("0 runs requested.*0 runs requested"))
    expect(row.first).to_be_visible()
    with tall(page):  # from the sensor's name on
        screenshot(page, "sensor")
    row.first.get_by_role("button", name="0 runs requested").click()
    expect(page.get_by_role("dialog")).to_contain_text(re.compile(r"No new partition in .*merged"))
    settle(page)
    shown = page.get_by_role("dialog").bounding_box()
    assert shown is not None
    clip: FloatRect = {"x": shown["x"], "y": shown["y"], "width": shown["width"], "height": 190}
    screenshot(page, "skipped", clip=clip)


def _materialize_from_page(dagster: RunningDagster, page: Page) -> None:
    """A month is materialized from its page; its run succeeds, and its numbers are shown."""
    page.goto(f"{dagster.url}/assets/web_returns")
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Select a partition").click()
    # In the list that opens, which may take its time: the page behind names the month, too.
    opened = page.locator(".bp5-portal")
    opened.get_by_text("2003-04", exact=True).filter(visible=True).last.click()
    page.keyboard.press("Escape")
    dialog.get_by_role("button", name="Launch").click()
    again = dagster.eventually(
        "the page started a run",
        lambda: next(
            (
                each
                for each in dagster.runs(dagster_partition="2003-04")
                if "dagster/sensor_name" not in each.tags
            ),
            None,
        ),
    )
    assert dagster.finished(again.run_id).status == DagsterRunStatus.SUCCESS, dagster.errors()
    page.goto(f"{dagster.url}/runs/{again.run_id}")
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    expect(page.get_by_text("RUN_SUCCESS", exact=True).first).to_be_visible()
    screenshot(page, "run")

    updated = _last_metadata(dagster)["merge/rows_updated"].value
    assert updated == ROWS // 2 + 200 * 3 + 100 * 3 - 60  # all of the month but its deletes
    page.goto(f"{dagster.url}/assets/web_returns?view=events")
    shown = page.get_by_role("row", name="merge/rows_updated")
    expect(shown).to_contain_text(str(updated))


def _look_at_failure(lake: Path, dagster: RunningDagster, page: Page) -> None:
    """A run that fails says what happened, in which state the table is, and what to do."""
    land(lake, REFUSED_MONTH, twice=2)
    run = dagster.requested(REFUSED_MONTH)
    assert dagster.finished(run.run_id).status == DagsterRunStatus.FAILURE
    page.goto(f"{dagster.url}/runs/{run.run_id}")
    expect(page.get_by_text("RUN_FAILURE", exact=True).first).to_be_visible()
    page.get_by_placeholder("Filter…").fill("Nothing was committed")
    error = page.get_by_text(re.compile("Return one row for each key")).filter(visible=True).first
    expect(error).to_be_visible()
    settle(page)
    place = error.bounding_box()
    assert place is not None
    clip: FloatRect = {
        "x": NAVIGATION,
        "y": 0,
        "width": WIDTH - NAVIGATION,
        "height": place["y"] + place["height"] + MARGIN,
    }
    screenshot(page, "failure", clip=clip)


def _last_metadata(dagster: RunningDagster) -> Mapping[str, MetadataValue[Any]]:
    event = dagster.instance.get_latest_materialization_event(AssetKey("web_returns"))
    assert event is not None
    assert event.asset_materialization is not None
    return event.asset_materialization.metadata
