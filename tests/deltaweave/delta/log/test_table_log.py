"""A name means the same table as in SQL: tables of one name in two catalogs are never confused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, errors, explain, merge
from tests.builders import frame

DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


@dataclass(frozen=True)
class TwoCatalogs:
    """A session whose catalogs `spark_catalog` and `other` both have a table of one name.

    Attributes:
        session: The session.
        name: The table's name, without a catalog.
        ours: Its directory in `spark_catalog`.
        others: Its directory in `other`.
    """

    session: SparkSession
    name: str
    ours: str
    others: str


def second_catalog(session: SparkSession) -> Any:
    """A session catalog of its own behind Delta's catalog `other`, as other products set it up."""
    session.conf.set("spark.sql.catalog.other", DELTA_CATALOG)
    java: Any = session.sparkContext._jvm
    spark = java.org.apache.spark
    tables = spark.sql.catalyst.catalog.SessionCatalog(
        spark.sql.catalyst.catalog.InMemoryCatalog(
            spark.SparkConf(), java.org.apache.hadoop.conf.Configuration()
        )
    )
    sessions = spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)  # in whose settings catalogs are looked up
    catalog = session._jsparkSession.sessionState().catalogManager().catalog("other")
    if before.isDefined():
        sessions.setActiveSession(before.get())
    catalog.setDelegateCatalog(spark.sql.execution.datasources.v2.V2SessionCatalog(tables))
    return tables


def add_derby(session: SparkSession) -> None:
    """A catalog `derby` whose tables, in a database of its own, are not Delta's."""
    jdbc = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    for key, value in {
        "": jdbc,
        ".url": f"jdbc:derby:memory:{uuid.uuid4().hex};create=true",
        ".driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
    }.items():
        session.conf.set(f"spark.sql.catalog.derby{key}", value)


@contextmanager
def two_catalogs(session: SparkSession, folder: Path) -> Iterator[TwoCatalogs]:
    """Tables of one name in the session's two catalogs, with the columns `k` and `v`."""
    database = f"sales_{uuid.uuid4().hex[:8]}"
    tables = second_catalog(session)
    session.sql(f"CREATE DATABASE {database}")
    session.sql(f"CREATE NAMESPACE other.{database} LOCATION '{folder}/namespace'")
    state = session._jsparkSession.sessionState()
    parsed = state.sqlParser().parseTableIdentifier(f"{database}.t")
    paths = [str(folder / name) for name in ("others", "ours")]
    for number, path in enumerate(paths):
        columns = f"(k INT, v INT) USING delta LOCATION '{path}'"
        session.sql(f"CREATE TABLE {database}.t {columns}")
        if number == 0:  # Delta creates tables in spark_catalog alone: it moves to the other one
            tables.createTable(state.catalog().getTableMetadata(parsed), False, False)
            session.sql(f"DROP TABLE {database}.t")
    yield TwoCatalogs(session, f"{database}.t", paths[1], paths[0])
    session.sql(f"DROP DATABASE spark_catalog.{database} CASCADE")


@pytest.fixture
def catalogs(spark: SparkSession, tmp_path: Path) -> Iterator[TwoCatalogs]:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    with two_catalogs(session, tmp_path) as catalogs:
        yield catalogs


@pytest.mark.minutes
def test_a_table_of_another_catalog_is_the_one_that_is_read_and_written(
    catalogs: TwoCatalogs,
) -> None:
    session = catalogs.session
    table = Table(session, f"other.{catalogs.name}")
    assert table.exists()
    assert table.location() == f"file:{catalogs.others}"
    assert not table.create_if_missing("k INT, v INT")
    rows = frame(session, [(1, 10)], "k INT, v INT")
    assert table.write(rows, "append").version == 1
    merge = table.merge(rows, on="t.k = s.k").when_matched_update({"v": "t.v + 1"})
    assert merge.execute().version == 2
    assert [row.v for row in table.read().collect()] == [11]
    table.delete("k = 1")
    assert table.version() == 3
    for name in (catalogs.name, f"spark_catalog.{catalogs.name}"):
        ours = Table(session, name)
        assert (ours.location(), ours.version()) == (f"file:{catalogs.ours}", 0)


def test_a_name_without_a_catalog_is_of_the_current_one(catalogs: TwoCatalogs) -> None:
    catalogs.session.sql("SET CATALOG other")
    table = Table(catalogs.session, catalogs.name)
    assert table.location() == f"file:{catalogs.others}"


def test_no_table_is_created_where_delta_would_take_another_catalog(catalogs: TwoCatalogs) -> None:
    session, database = catalogs.session, catalogs.name.split(".")[0]
    table = Table(session, f"other.{database}.new")
    assert not table.exists()
    with pytest.raises(errors.StatementError, match="creates no tables in other catalogs"):
        table.create_if_missing("k INT")
    assert not Table(session, f"{database}.new").exists()


def test_a_table_of_sparks_own_catalog_is_created_by_its_full_name(catalogs: TwoCatalogs) -> None:
    session, database = catalogs.session, catalogs.name.split(".")[0]
    assert Table(session, f"spark_catalog.{database}.new").create_if_missing("k INT")
    assert Table(session, f"{database}.new").exists()
    assert not Table(session, f"other.{database}.new").exists()
    session.sql("SET CATALOG other")
    later = Table(session, f"spark_catalog.{database}.later")
    with pytest.raises(errors.StatementError, match="only where their name without a catalog"):
        later.create_if_missing("k INT")
    assert not later.exists()


def test_a_table_of_a_schema_that_is_missing_is_refused(catalogs: TwoCatalogs) -> None:
    with pytest.raises(errors.TableNotFoundError, match="SCHEMA_NOT_FOUND") as refused:
        Table(catalogs.session, "no_such_schema.t").create_if_missing("k INT")
    assert "Create the schema first" in str(refused.value.hint)


def test_an_unknown_catalog_is_refused_and_no_other_table_is_used(catalogs: TwoCatalogs) -> None:
    table = Table(catalogs.session, f"nowhere.{catalogs.name}")
    for use in (table.exists, table.version, lambda: table.create_if_missing("k INT")):
        with pytest.raises(errors.StatementError, match="no catalog 'nowhere'"):
            use()


def test_a_name_that_means_a_temporary_view_is_refused(catalogs: TwoCatalogs) -> None:
    """A merge would change the view's table, and its version be that of another one."""
    session, (database, name) = catalogs.session, catalogs.name.split(".")
    session.sql(f"USE {database}")
    session.read.format("delta").load(catalogs.others).createOrReplaceTempView(name)
    for use in (Table(session, name).version, Table(session, name).exists):
        with pytest.raises(errors.StatementError, match="a temporary view"):
            use()
    assert Table(session, catalogs.name).location() == f"file:{catalogs.ours}"


UNITY = "io.unitycatalog.spark.UCSingleCatalog"


def test_a_catalog_whose_connector_is_missing_is_refused(catalogs: TwoCatalogs) -> None:
    """As that of Unity Catalog, which Maven Central does not have."""
    session = catalogs.session
    session.conf.set("spark.sql.catalog.unity", UNITY)
    name, source = f"unity.{catalogs.name}", frame(session, [(1, 10)], "k INT, v INT")
    source.createOrReplaceTempView("changes")
    table = Table(session, name)
    text = f"MERGE INTO {name} t USING changes s ON t.k = s.k WHEN MATCHED THEN DELETE"
    for use in (
        table.exists,
        table.version,
        lambda: table.create_if_missing("k INT, v INT"),
        lambda: table.merge(source, on="t.k = s.k").when_matched_delete().execute(),
        lambda: merge(session, text),
        lambda: explain(session, text),
    ):
        with pytest.raises(errors.DeltaweaveError, match=UNITY) as raised:
            use()
        assert type(raised.value) is errors.StatementError
        assert "jars of its connector" in str(raised.value)


def test_a_table_of_another_catalog_than_deltas_is_refused_and_unchanged(
    catalogs: TwoCatalogs,
) -> None:
    session, schema = catalogs.session, "APP"
    add_derby(session)
    name = f"derby.{schema}.t"
    session.sql(f"CREATE TABLE {name} (k INT, v INT)")
    session.sql(f"INSERT INTO {name} VALUES (1, 10)")
    source = frame(session, [(1, 11)], "k INT, v INT")
    source.createOrReplaceTempView("changes")
    table = Table(session, name)
    text = f"MERGE INTO {name} t USING changes s ON t.k = s.k WHEN MATCHED THEN DELETE"
    for use in (
        table.version,
        lambda: table.write(source, "append"),
        lambda: table.merge(source, on="t.k = s.k").when_matched_delete().execute(),
        lambda: merge(session, text),
        lambda: explain(session, text),
    ):
        with pytest.raises(errors.NotADeltaTableError):
            use()
    with pytest.raises(errors.StatementError, match="creates no tables in other catalogs"):
        Table(session, f"derby.{schema}.new").create_if_missing("k INT")
    assert [tuple(row) for row in session.table(name).collect()] == [(1, 10)]
