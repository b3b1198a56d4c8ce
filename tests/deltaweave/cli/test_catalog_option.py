"""`--catalog`: where the commands look for names that name no catalog."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from deltaweave.cli import app
from tests.deltaweave.delta.log.test_table_log import TwoCatalogs, add_derby, two_catalogs
from tests.support.oracles import newest_version

MERGE = (
    "MERGE INTO {name} t USING (SELECT 1 AS k) s ON t.k = s.k WHEN NOT MATCHED THEN INSERT (k) "
    "VALUES (s.k)"
)


@pytest.fixture
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """The session that commands find active."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    monkeypatch.setattr(SparkSession, "_activeSession", session)  # as PySpark keeps it
    sessions: Any = spark.sparkContext._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    yield session
    sessions.setActiveSession(before.get() if before.isDefined() else spark._jsparkSession)


@pytest.fixture
def catalogs(session: SparkSession, tmp_path: Path) -> Iterator[TwoCatalogs]:
    with two_catalogs(session, tmp_path) as catalogs:
        yield catalogs


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.minutes
def test_names_without_a_catalog_are_those_of_the_given_one(catalogs: TwoCatalogs) -> None:
    name = catalogs.name
    merged = run("merge", MERGE.format(name=name), "--catalog", "other")
    assert merged.exit_code == 0, merged.output
    assert [newest_version(path) for path in (catalogs.others, catalogs.ours)] == [1, 0]
    for command in (["history", name], ["inspect", name], ["maintain", name, "--only", "purge"]):
        found = run(*command, "--json", "--catalog", "other")
        assert found.exit_code == 0, found.output
    assert catalogs.others in run("inspect", name, "--json", "--catalog", "other").stdout
    # Names that have a catalog keep it.
    elsewhere = run("inspect", f"spark_catalog.{name}", "--json", "--catalog", "other")
    assert catalogs.ours in elsewhere.stdout


@pytest.mark.parametrize("table", ["APP.t", "no.such"])
def test_a_session_that_was_there_gets_its_catalog_and_schema_back(
    session: SparkSession, table: str
) -> None:
    add_derby(session)
    session.sql("CREATE TABLE derby.APP.t (k INT)")
    schema = f"sales_{uuid.uuid4().hex[:8]}"
    session.sql(f"CREATE DATABASE {schema}")
    session.sql(f"USE {schema}")
    result = run("inspect", table, "--catalog", "derby")
    assert result.exit_code == 1
    assert table in result.output
    found = session.catalog.currentCatalog(), session.catalog.currentDatabase()
    assert found == ("spark_catalog", schema)
    session.sql("USE default")
    session.sql(f"DROP DATABASE {schema}")


def test_a_catalog_that_cannot_be_given_back_hides_no_result(
    catalogs: TwoCatalogs, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the JVM ends, or the metastore goes away, after the commit."""
    setting = session.catalog.setCurrentCatalog

    def once(catalog: str) -> None:
        setting(catalog)
        monkeypatch.setattr(session.catalog, "setCurrentCatalog", failing)

    def failing(catalog: str) -> None:
        raise RuntimeError("no answer")

    monkeypatch.setattr(session.catalog, "setCurrentCatalog", once)
    merged = run("merge", MERGE.format(name=catalogs.name), "--catalog", "other")
    assert merged.exit_code == 0, merged.output
    assert "committed version 1" in merged.stdout


def test_a_catalog_that_the_session_lacks_ends_the_command(session: SparkSession) -> None:
    result = run("inspect", "sales.t", "--catalog", "nowhere")
    assert result.exit_code == 1
    assert "nowhere" in result.output
    assert "looking for the catalog" in result.output
