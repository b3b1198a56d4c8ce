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
from tests.deltaweave.delta.log.test_catalogs import second_catalog
from tests.oracles import newest_version

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
def name(spark: SparkSession, session: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The name, without a catalog, of a table in `tmp_path/ours` and of another in `other`."""
    database = f"sales_{uuid.uuid4().hex[:8]}"
    tables = second_catalog(session)
    session.sql(f"CREATE DATABASE {database}")
    session.sql(f"CREATE NAMESPACE other.{database} LOCATION '{tmp_path}/namespace'")
    state = session._jsparkSession.sessionState()
    parsed = state.sqlParser().parseTableIdentifier(f"{database}.t")
    columns = "(k INT) USING delta LOCATION"
    session.sql(f"CREATE TABLE {database}.t {columns} '{tmp_path}/other'")
    # Delta creates tables in spark_catalog alone: it moves to the other one.
    tables.createTable(state.catalog().getTableMetadata(parsed), False, False)
    session.sql(f"DROP TABLE {database}.t")
    session.sql(f"CREATE TABLE {database}.t {columns} '{tmp_path}/ours'")
    yield f"{database}.t"
    spark.sql(f"DROP DATABASE {database} CASCADE")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_names_without_a_catalog_are_those_of_the_given_one(
    session: SparkSession, name: str, tmp_path: Path
) -> None:
    merged = run("merge", MERGE.format(name=name), "--catalog", "other")
    assert merged.exit_code == 0, merged.output
    assert [newest_version(str(tmp_path / each)) for each in ("other", "ours")] == [1, 0]
    for command in (["history", name], ["inspect", name], ["maintain", name, "--only", "purge"]):
        found = run(*command, "--json", "--catalog", "other")
        assert found.exit_code == 0, found.output
    assert f"{tmp_path}/other" in run("inspect", name, "--json", "--catalog", "other").stdout
    # Names that have a catalog keep it.
    elsewhere = run("inspect", f"spark_catalog.{name}", "--json", "--catalog", "other")
    assert f"{tmp_path}/ours" in elsewhere.stdout


@pytest.mark.parametrize("table", ["APP.t", "no.such"])
def test_a_session_that_was_there_gets_its_catalog_and_schema_back(
    session: SparkSession, table: str
) -> None:
    jdbc = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    for key, value in {
        "": jdbc,
        ".url": f"jdbc:derby:memory:{uuid.uuid4().hex};create=true",
        ".driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
    }.items():
        session.conf.set(f"spark.sql.catalog.derby{key}", value)
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
    session: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the JVM ends, or the metastore goes away, after the commit."""
    setting = session.catalog.setCurrentCatalog

    def once(catalog: str) -> None:
        setting(catalog)
        monkeypatch.setattr(session.catalog, "setCurrentCatalog", failing)

    def failing(catalog: str) -> None:
        raise RuntimeError("no answer")

    monkeypatch.setattr(session.catalog, "setCurrentCatalog", once)
    merged = run("merge", MERGE.format(name=name), "--catalog", "other")
    assert merged.exit_code == 0, merged.output
    assert "committed version 1" in merged.stdout


def test_a_catalog_that_the_session_has_not_ends_the_command(session: SparkSession) -> None:
    result = run("inspect", "sales.t", "--catalog", "nowhere")
    assert result.exit_code == 1
    assert "nowhere" in result.output
    assert "looking for the catalog" in result.output
