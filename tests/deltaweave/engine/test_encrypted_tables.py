"""Tables whose files Parquet encrypts, and other settings that only Spark's writer follows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table, apply_changes, errors
from deltaweave.changes.side_tables.side_table import encryption_of
from deltaweave.delta.files import encryption_properties
from tests.builders import frame, write_table
from tests.support.encryption import (
    FACTORY,
    ONE_COLUMN,
    SETTINGS,
    WHOLE_FILES,
    add_key_service,
)
from tests.support.settings import configured

SCHEMA = "k INT, secret STRING"
SECRET = "hidden-"
ROWS = [(k, f"{SECRET}{k}") for k in range(1, 5)]
CHANGES = [(1, f"{SECRET}new"), (9, f"{SECRET}more")]
UNCOMPRESSED = {"spark.sql.parquet.compression.codec": "uncompressed"}


@pytest.fixture(scope="module", autouse=True)
def key_service(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    add_key_service(spark, tmp_path_factory.mktemp("key_service"))


@pytest.fixture(autouse=True)
def uncompressed(spark: SparkSession) -> Iterator[None]:
    """A search of files for a text finds it."""
    with configured(spark, UNCOMPRESSED):
        yield


def plain_files(path: Path) -> list[str]:
    """The Parquet files that hold a secret which can be read without a key."""
    files = [each for each in path.rglob("*.parquet") if "_delta_log" not in each.parts]
    assert files
    return [str(each) for each in files if SECRET.encode() in each.read_bytes()]


def merge(spark: SparkSession, path: Path, clauses: str) -> str:
    frame(spark, CHANGES, SCHEMA).createOrReplaceTempView("changes")
    statement = f"MERGE INTO delta.`{path}` t USING changes s ON t.k = s.k {clauses}"
    return deltaweave.merge(spark, statement).strategy


UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("strategy", "properties", "clauses", "on_driver"),
    [
        ("insert-only", {}, "WHEN NOT MATCHED THEN INSERT *", "true"),
        ("insert-only", {}, "WHEN NOT MATCHED THEN INSERT *", "false"),
        ("deletion-vectors", VECTORS, UPSERT, "true"),
        ("deletion-vectors", {**VECTORS, **FEED}, UPSERT, "false"),
        ("copy-on-write", {}, UPSERT, "false"),
        ("copy-on-write", FEED, UPSERT, "true"),
    ],
)
def test_no_strategy_leaves_a_secret_that_is_read_without_a_key(
    spark: SparkSession,
    tmp_path: Path,
    strategy: str,
    properties: dict[str, str],
    clauses: str,
    on_driver: str,
) -> None:
    path = tmp_path / "table"
    of_engine = {
        "spark.deltaweave.merge.onDriver": on_driver,
        "spark.deltaweave.merge.rewriteInPlace": "true",
    }
    with configured(spark, {**SETTINGS, **of_engine}):
        write_table(
            spark, str(path), ROWS, SCHEMA, ddl=SCHEMA, properties={**WHOLE_FILES, **properties}
        )
        assert plain_files(path) == []
        assert merge(spark, path, clauses) == strategy
        assert plain_files(path) == []
        magic = {each.read_bytes()[-4:] for each in path.rglob("*.parquet")}
        assert magic == {b"PARE"}
        rows = set(map(tuple, Table(spark, str(path)).read().collect()))
    updated = CHANGES[0] if clauses == UPSERT else ROWS[0]
    assert rows == {updated, *ROWS[1:], CHANGES[1]}


# The session can read no secret: the properties of the table alone encrypt what is written.
@pytest.mark.minutes
@pytest.mark.parametrize("on_driver", ["true", "false"])
@pytest.mark.parametrize(
    ("properties", "clauses"),
    [({}, "WHEN NOT MATCHED THEN INSERT *"), (VECTORS, UPSERT)],
    ids=["insert", "upsert"],
)
def test_a_table_that_is_encrypted_by_its_properties_alone_stays_so(
    spark: SparkSession,
    tmp_path: Path,
    properties: dict[str, str],
    clauses: str,
    on_driver: str,
) -> None:
    path = tmp_path / "table"
    all_of_it = {**SETTINGS, **ONE_COLUMN, **properties}
    write_table(spark, str(path), ROWS, SCHEMA, ddl=SCHEMA, properties=all_of_it)
    assert plain_files(path) == []
    with configured(spark, {"spark.deltaweave.merge.onDriver": on_driver}):
        merge(spark, path, clauses)
        assert plain_files(path) == []
    assert "parquet." in explained(spark, path, UPSERT)
    with configured(spark, SETTINGS):
        rows = set(map(tuple, Table(spark, str(path)).read().collect()))
    updated = CHANGES[0] if clauses == UPSERT else ROWS[0]
    assert rows == {updated, *ROWS[1:], CHANGES[1]}


def explained(spark: SparkSession, path: Path, clauses: str) -> str:
    frame(spark, CHANGES, SCHEMA).createOrReplaceTempView("changes")
    settings = {
        "spark.deltaweave.merge.onDriver": "true",
        "spark.deltaweave.merge.rewriteInPlace": "true",
    }
    statement = f"MERGE INTO delta.`{path}` t USING changes s ON t.k = s.k {clauses}"
    with configured(spark, settings):
        plan = deltaweave.explain(spark, statement)
    return f"{plan.reason} {plan}"


def test_no_log_shows_the_value_of_a_setting_of_the_writer(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "table"
    write_table(spark, str(path), ROWS, SCHEMA)
    name = "parquet.encryption.key.access.token"
    with configured(spark, {name: "a-token"}):
        with caplog.at_level(logging.DEBUG):
            assert name in explained(spark, path, UPSERT)
        assert "Answer received" in caplog.text  # py4j's
        assert "a-token" not in caplog.text


@pytest.mark.minutes
def test_an_encrypted_source_is_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    target, source = tmp_path / "target", tmp_path / "source"
    write_table(spark, str(target), ROWS, SCHEMA)
    on_driver = {"spark.deltaweave.merge.onDriver": "true"}
    for properties in (WHOLE_FILES, ONE_COLUMN):
        place = source / str(len(properties))
        of_source = {**SETTINGS, **properties}
        write_table(spark, str(place), CHANGES, SCHEMA, ddl=SCHEMA, properties=of_source)
        with configured(spark, {**SETTINGS, **on_driver}):
            statement = (
                f"MERGE INTO delta.`{target}` t USING delta.`{place}` s ON t.k = s.k {UPSERT}"
            )
            deltaweave.merge(spark, statement)
    rows = set(map(tuple, Table(spark, str(target)).read().collect()))
    assert rows == {CHANGES[0], *ROWS[1:], CHANGES[1]}


def test_a_key_index_is_refused_beside_an_encrypted_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    all_of_it = {**SETTINGS, **ONE_COLUMN, "deltaweave.keyIndex": "secret"}
    write_table(spark, str(path), ROWS, SCHEMA, ddl=SCHEMA, properties=all_of_it)
    with pytest.raises(errors.StatementError, match=r"parquet\..* encrypts its files"):
        Table(spark, str(path)).index_keys("secret")
    merge(spark, path, "WHEN NOT MATCHED THEN INSERT *")  # the property was set before
    assert not (path / "_deltaweave_keys").exists()


EVENTS = "k INT, secret STRING, at INT, gone BOOLEAN"
FIRST = [(1, f"{SECRET}1", 1, False), (2, f"{SECRET}2", 1, False)]
NEXT = [(1, f"{SECRET}new", 2, False), (2, None, 2, True)]


@pytest.mark.minutes
@pytest.mark.parametrize("kind", ["current rows", "merge on read"])
def test_what_keeps_rows_beside_an_encrypted_table_is_encrypted_too(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "table"
    with configured(spark, SETTINGS):
        apply(spark, path, kind, FIRST)
        encrypt(spark, path)
        if kind == "merge on read":  # whose changeset was there before, in plain text
            with pytest.raises(errors.StatementError, match=r"parquet\.encryption\.uniform\.key"):
                apply(spark, path, kind, NEXT)
            encrypt(spark, Path(f"{path}_changes"))
        before = set(plain_files(tmp_path))
        apply(spark, path, kind, NEXT)
        assert set(plain_files(tmp_path)) <= before
        beside = [each.name for each in tmp_path.rglob("_delta_log")]
        assert len(beside) == 2  # remembered deletes, or the changeset


def existing(properties: dict[str, str]) -> Table:
    """A table with these properties alone."""
    metadata = SimpleNamespace(properties=properties)
    snapshot = SimpleNamespace(metadata=metadata)
    table = SimpleNamespace(exists=lambda: True, snapshot=lambda: snapshot, path_or_name="t")
    return cast(Table, table)


def test_what_keeps_rows_encrypts_the_columns_that_the_table_encrypts_now() -> None:
    """A column that was added to the property later would be in plain text."""
    encrypted = existing(ONE_COLUMN)
    assert encryption_of(encrypted, existing({**ONE_COLUMN, "steward": "sales"})) == ONE_COLUMN
    older = {**ONE_COLUMN, "parquet.encryption.column.keys": "master:another"}
    with pytest.raises(errors.StatementError, match=r"parquet\.encryption\.column\.keys") as raised:
        encryption_of(encrypted, existing(older))
    assert "another" not in str(raised.value)  # values may be keys


def test_properties_that_a_factory_of_keys_may_read_encrypt_too() -> None:
    notes = {"my.kms.url": "https://keys", "steward": "sales"}
    assert encryption_properties(notes) == {}
    of_factory = {FACTORY: "com.example.Factory", "my.kms.url": "https://keys"}
    assert encryption_properties({**notes, **of_factory}) == of_factory


def encrypt(spark: SparkSession, path: Path) -> None:
    [(name, value)] = WHOLE_FILES.items()
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{name}' = '{value}')")


def apply(spark: SparkSession, path: Path, kind: str, rows: list[tuple[Any, ...]]) -> None:
    events = frame(spark, rows, EVENTS)
    options: dict[str, Any] = {"keys": ["k"], "sequence_by": "at", "apply_as_deletes": "gone"}
    options["except_column_list"] = ["at", "gone"]
    if kind == "current rows":
        apply_changes(spark, str(path), events, **options)
    else:
        MergeOnReadTable(spark, str(path), **options).append(events)


# A property of the table, or a setting of the session, and whether the engine may write beside it.
NAMES = [
    ({"parquet.block.size": "1048576"}, False),
    ({"parquet.page.size": "4096"}, False),
    ({"parquet.bloom.filter.enabled#k": "true"}, False),
    ({"parquet.enable.dictionary": "false"}, False),
    ({"parquet.compression.codec.zstd.level": "9"}, False),
    ({"parquet.page.write-checksum.enabled": "false"}, False),
    ({"parquet.some.setting.of.a.later.release": "1"}, False),
    ({"parquet.writer.version": "v2"}, False),
    ({"parquet.writer.version": "v1"}, True),
    ({"parquet.compression": "gzip"}, True),  # Spark sets its own
    ({"parquet.filter.stats.enabled": "false"}, True),  # of readers
]
OF_TABLES = [
    *NAMES,
    ({"my.kms.url": "https://keys"}, False),  # a factory of one's own may read it
    ({"delta.parquet.format.version": "2.12.0"}, False),
    ({"delta.parquet.format.version": "1.0.0"}, True),
    ({"delta.dataSkippingNumIndexedCols": "4"}, True),
    ({"steward": "sales"}, True),
]
OF_SESSIONS = [
    *NAMES,
    ({"spark.sql.parquet.writeLegacyFormat": "true"}, False),
    ({"spark.sql.parquet.writeLegacyFormat": "false"}, True),
    ({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}, False),
    ({"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}, False),
    ({"spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED"}, True),
    ({"spark.sql.parquet.filterPushdown": "false"}, True),
    ({"spark.sql.files.maxRecordsPerFile": "1"}, False),
    ({"spark.sql.files.maxRecordsPerFile": "0"}, True),
]


@pytest.mark.minutes
@pytest.mark.parametrize("place", ["table", "session"])
def test_writer_settings_that_the_engine_lacks_leave_files_to_spark(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    path = tmp_path / "table"
    write_table(spark, str(path), ROWS, SCHEMA)
    found = []
    for settings, _ in OF_TABLES if place == "table" else OF_SESSIONS:
        [(name, value)] = settings.items()
        if place == "table":
            spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{name}' = '{value}')")
            reason = explained(spark, path, UPSERT)
            spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{name}')")
        else:
            with configured(spark, settings):
                reason = explained(spark, path, UPSERT)
        found.append((settings, name not in reason))
    assert found == (OF_TABLES if place == "table" else OF_SESSIONS)


def test_a_bloom_filter_that_a_table_asks_for_is_in_every_new_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    asked = {
        "parquet.bloom.filter.enabled#secret": "true",
        "parquet.enable.dictionary": "false",  # Parquet makes no filter of what a dictionary has
        "parquet.compression": "gzip",
    }
    write_table(spark, str(path), ROWS, SCHEMA, ddl=SCHEMA, properties=asked)
    with configured(spark, {"spark.deltaweave.merge.onDriver": "true"}):
        merge(spark, path, UPSERT)
    files = [pq.read_metadata(each) for each in path.glob("*.parquet")]
    assert len(files) >= 2
    for each in files:
        column = each.row_group(0).column(1)
        assert column.compression == "UNCOMPRESSED"  # the session's codec, for Spark too
        assert column.bloom_filter_offset is not None
