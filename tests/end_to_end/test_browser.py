"""The demo lake's deployment as `make ui` serves it, used through its pages in a real browser."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterRunStatus
from playwright.sync_api import Page, expect, sync_playwright

from assets.demo_data import SCHEMA
from tests.end_to_end.running import ROOT, RunningDagster, running_dagster

pytestmark = pytest.mark.minutes

MONTHS = ["2003-01", "2003-02", "2003-03", "2003-04"]
ROWS = 2_000

WIDTH, HEIGHT = 1440, 900

# As `make demo` does, without its data.
DEMO_RUNS = """
from dagster import DagsterInstance
from assets.demo_runs import execute, requested_runs

with DagsterInstance.get() as instance:
    for request in requested_runs(instance):
        execute(instance, request)
"""
# A sensor's cursor names the landing directory: the lake is shown as /lake, wherever it is.
WITHOUT_PATHS_OF_THIS_MACHINE = """
pattern => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    texts.currentNode.nodeValue =
      texts.currentNode.nodeValue.replace(new RegExp(pattern, "g"), "/lake");
}
"""
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


def land(lake: Path, month: str) -> None:
    """Land a month: new returns, the more the later, and corrections of the month before."""
    place = MONTHS.index(month)
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
    pq.write_table(table, directory / "part-0.parquet")
    (directory / "_SUCCESS").touch()


@pytest.fixture(scope="module")
def dagster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDagster]:
    lake = tmp_path_factory.mktemp("lake")
    home = lake / "dagster"
    environment = {"DELTAWEAVE_LAKE": str(lake), "DELTAWEAVE_ENV": "local"}

    def in_repository(*command: str) -> None:
        variables = {**os.environ, "DAGSTER_HOME": str(home), **environment}
        subprocess.run(command, cwd=ROOT, env=variables, check=True)

    in_repository("make", "--silent", f"DAGSTER_HOME={home}", f"{home}/dagster.yaml")
    land(lake, MONTHS[0])
    in_repository(sys.executable, "-c", DEMO_RUNS)
    for month in MONTHS[1:]:
        land(lake, month)
    with running_dagster(
        lambda port: ["make", "ui", f"PORT={port}", f"DAGSTER_HOME={home}"],
        home,
        location="assets.definitions",
        settings=(home / "dagster.yaml").read_text(),
        environment=environment,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    assert executable, "this test needs Chromium (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_OPTIONS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def screenshot(page: Page, name: str, *, below: int = 0) -> None:
    """Keep what is seen, where the variable says: `make screenshots` makes those of the README."""
    directory = os.environ.get("DELTAWEAVE_SCREENSHOTS")
    if directory:
        page.wait_for_timeout(1_500)  # until nothing moves any more
        page.evaluate(WITHOUT_PATHS_OF_THIS_MACHINE, f"{tempfile.gettempdir()}/\\S*?/lake\\d*")
        assert tempfile.gettempdir() not in page.inner_text("body")
        page.screenshot(
            path=Path(directory) / f"{name}.png",
            clip={"x": 0, "y": below, "width": WIDTH, "height": HEIGHT - below},
        )


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
    dagster: RunningDagster, page: Page
) -> None:
    # The sensor is switched on, ticks, and what landed is merged month by month.
    page.goto(f"{dagster.url}/locations/assets.definitions/sensors/web_returns_landed")
    page.get_by_role("row", name="Running").locator("label, button").first.click()
    for month in MONTHS[1:]:
        run = dagster.requested(month)
        assert dagster.finished(run.run_id).status == DagsterRunStatus.SUCCESS, dagster.errors()
    expect(page.get_by_role("button", name="3 runs requested")).to_be_visible()
    screenshot(page, "sensor", below=100)

    # The graph shows where the table comes from and what comes of it.
    page.goto(f"{dagster.url}/asset-groups")
    for name in ("web_returns_landing", "web_returns", "returns_by_reason"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    screenshot(page, "lineage")

    # A month is materialized from its page, and its run succeeds.
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
    screenshot(page, "run")

    # What its merge did is on the asset's page, as numbers and as plots.
    event = dagster.instance.get_latest_materialization_event(AssetKey("web_returns"))
    assert event is not None
    assert event.asset_materialization is not None
    updated = event.asset_materialization.metadata["merge/rows_updated"].value
    assert updated == ROWS // 2 + 200 * 3 + 100 * 3 - 60  # all of the month but its deletes
    page.goto(f"{dagster.url}/assets/web_returns?view=events")
    shown = page.get_by_role("row", name="merge/rows_updated")
    expect(shown).to_contain_text(str(updated))
    page.goto(f"{dagster.url}/assets/web_returns?view=overview")
    page.get_by_text("Plots", exact=True).first.click()
    heading = page.get_by_text("merge/rows_updated", exact=True).first
    heading.scroll_into_view_if_needed()
    expect(heading).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()
    screenshot(page, "plots")
