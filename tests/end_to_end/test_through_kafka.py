"""Changes that go through Kafka: the demo's, and those of a PostgreSQL by Debezium's connector."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from assets.cdc_demo import pipeline
from assets.cdc_demo.broker import create_topic_if_missing, running_broker
from assets.java_program import JavaProgramError, class_path, run_to_its_end
from deltaweave import FROM_DEBEZIUM, MergeOnReadTable, Table, debezium_changes
from tests.end_to_end.connector import (
    POSTGRES_PACKAGE,
    PREFIX,
    postgres_connector,
    running_connectors,
)
from tests.end_to_end.postgres import connect, running_postgres

pytestmark = pytest.mark.minutes

TOPIC = f"{PREFIX}.public.customers"

CUSTOMERS = 60


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.mark.full_matrix  # CI runs the demo itself, which checks as much
def test_the_demo_shows_the_databases_rows_also_when_it_is_run_again(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    table = pipeline.customers_table(spark, tmp_path)
    messages = pipeline.messages_of(spark, kafka, pipeline.TOPIC)
    delivered = []
    for _ in range(2):
        delivered.append(pipeline.deliver_next_round(kafka, CUSTOMERS))
        pipeline.ingest(table, pipeline.events_of(messages), tmp_path)
        expected = pipeline.rows_in_the_database(delivered[-1].rounds, CUSTOMERS)
        assert table.pending().rows == sum(each.events for each in delivered)
        assert pipeline.rows_of(table.read()) == expected
    table.rematerialize()
    assert pipeline.rows_of(table.read_optimized()) == expected
    assert [each.rounds for each in delivered] == [1, 2]
    assert delivered[1].repeated == delivered[0].events


def test_a_broker_that_is_started_again_has_the_topics_that_there_were(tmp_path: Path) -> None:
    with running_broker(tmp_path) as bootstrap:
        create_topic_if_missing(bootstrap, pipeline.TOPIC)
        assert pipeline.deliver_next_round(bootstrap, CUSTOMERS).rounds == 1
    with running_broker(tmp_path) as bootstrap:
        assert pipeline.newest_round(bootstrap) == 1


def test_the_demo_names_a_missing_package_or_program() -> None:
    with pytest.raises(JavaProgramError, match=r"no-such-package:1\.0, .* could not be fetched"):
        class_path(["org.apache.kafka:no-such-package:1.0"])
    with pytest.raises(JavaProgramError, match=r"no\.such\.Program"):
        run_to_its_end("no.such.Program", [], "nowhere.jar")


TABLE = """
CREATE TABLE customers (
    id INT PRIMARY KEY,
    name TEXT NOT NULL,
    balance NUMERIC(10, 2),
    born DATE,
    seen TIMESTAMPTZ,
    at TIMESTAMP,
    active BOOLEAN,
    visits BIGINT,
    ratio DOUBLE PRECISION,
    story TEXT,
    photo BYTEA,
    words TEXT[],
    codes INT[],
    doc JSONB
)
"""
SCHEMA = (
    "id INT, name STRING, balance DECIMAL(10,2), born DATE, seen TIMESTAMP, at TIMESTAMP_NTZ, "
    "active BOOLEAN, visits BIGINT, ratio DOUBLE, story STRING, photo BINARY, words ARRAY<STRING>, "
    "codes ARRAY<INT>, doc STRING"
)
# Too large for a row, so that PostgreSQL stores them apart and logs them only where they change.
LARGE = ["story", "photo", "words", "codes", "doc"]
INSERT = """
INSERT INTO customers
SELECT i, 'Customer ' || i, i * 1.25, DATE '1960-02-29' + i, '2024-03-31 01:30:00.123456+00',
       '1969-12-31 23:59:59.5', i % 2 = 0, 10000000000 + i, i / 3.0,
       repeat('story ', 1000) || i, decode(repeat('00ff', 3000), 'hex'),
       array_fill('wörd' || i, ARRAY[1000]), array_fill(i, ARRAY[2000]),
       jsonb_build_object('i', i, 'text', repeat('x', 5000))
FROM generate_series({}, {}) AS i
"""
SMALL = "INSERT INTO customers (id, name, balance) VALUES ({}, 'new', 1)"

# Each ends with a new row, which shows that all of them have come through Kafka.
CHANGES = [
    "UPDATE customers SET name = 'renamed', balance = -0.01 WHERE id = 1",  # leaves what is large
    "UPDATE customers SET story = repeat('new ', 2000), codes = NULL WHERE id = 2",
    "UPDATE customers SET name = '', born = NULL, words = '{}' WHERE id = 3",
    "DELETE FROM customers WHERE id = 4",
    # A change of key is a delete and an insert, which has all values only if the log does.
    "ALTER TABLE customers REPLICA IDENTITY FULL",
    "UPDATE customers SET id = 50 WHERE id = 5",
    "ALTER TABLE customers REPLICA IDENTITY DEFAULT",
    SMALL.format(5),  # the key is free again
    "BEGIN",
    SMALL.format(60),
    "UPDATE customers SET name = 'then this' WHERE id = 60",
    "DELETE FROM customers WHERE id = 60",
    SMALL.format(60),
    "UPDATE customers SET visits = 3 WHERE id = 60",
    "COMMIT",
    "BEGIN",
    "DELETE FROM customers",
    "ROLLBACK",
    SMALL.format(100),
]
CHANGES_WHILE_THE_CONNECTOR_IS_DOWN = [
    "UPDATE customers SET visits = visits + 1",
    "DELETE FROM customers WHERE id IN (2, 60)",
    INSERT.format(2, 2),
    SMALL.format(101),
]
TRUNCATE = [SMALL.format(102), "TRUNCATE customers", INSERT.format(1, 2), SMALL.format(103)]


def test_rows_are_those_of_the_postgresql_that_the_changes_come_from(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    keys = ["id"]
    current = str(tmp_path / "current")
    table = MergeOnReadTable(spark, str(tmp_path / "base"), keys=keys, **FROM_DEBEZIUM)
    messages = pipeline.messages_of(spark, kafka, TOPIC)
    changes = debezium_changes(messages, schema=SCHEMA, connector="postgresql")

    def ingest() -> None:
        table.ingest(changes, name="a", checkpoint=str(tmp_path / "a")).awaitTermination()

    def apply() -> None:
        def apply_batch(batch: DataFrame, number: int) -> None:
            deltaweave.apply_changes(
                spark, current, batch, keys=keys, idempotency=("kafka", number), **FROM_DEBEZIUM
            )

        run_once(changes, apply_batch, tmp_path / "b")

    directory = tmp_path / "connect"
    directory.mkdir()
    with running_postgres() as port, connect(port) as database:
        database.execute(TABLE)
        for column in LARGE:
            database.execute(f"ALTER TABLE customers ALTER {column} SET STORAGE EXTERNAL")
        database.execute(INSERT.format(1, 6))
        # With the settings that docs/how-to/debezium.md asks for.
        connector = postgres_connector(port, "public.customers")
        connector["decimal.handling.mode"] = "string"
        connect_once = partial(running_connectors, directory, kafka, POSTGRES_PACKAGE, [connector])
        with connect_once() as process:
            wait_for(kafka, key=6)
            execute(database, CHANGES)
            wait_for(kafka, key=100)
            wait_for_saved_position(directory)
            process.kill()
        execute(database, CHANGES_WHILE_THE_CONNECTOR_IS_DOWN[:-1])
        ingest()
        apply()
        with connect_once():
            execute(database, CHANGES_WHILE_THE_CONNECTOR_IS_DOWN[-1:])
            wait_for(kafka, key=101)
            ingest()
            apply()
            expected = rows_in(database)
            assert set(expected) == {1, 2, 3, 5, 6, 50, 100, 101}
            assert rows_of(table.read()) == expected
            assert rows_of(Table(spark, current).read()) == expected
            table.rematerialize()
            assert rows_of(table.read_optimized()) == expected
            execute(database, TRUNCATE)
            wait_for(kafka, key=103)
            ingest()
            apply()
            expected = rows_in(database)
            assert set(expected) == {1, 2, 103}
            assert rows_of(table.read()) == expected
            assert rows_of(Table(spark, current).read()) == expected
            table.rematerialize()
            assert rows_of(table.read_optimized()) == expected


def run_once(
    stream: DataFrame, each_batch: Callable[[DataFrame, int], None], checkpoint: Path
) -> None:
    writer = stream.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(
        each_batch
    )
    writer.trigger(availableNow=True).start().awaitTermination()


def execute(database: psycopg.Connection[Any], statements: list[str]) -> None:
    for statement in statements:
        database.execute(statement.encode())


def wait_for(kafka: str, *, key: int, seconds: float = 60) -> None:
    """Until the row of a key has come through the topic, and with it all that was before."""
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": "wait", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None or message.error() or (value := message.value()) is None:
                continue
            if (json.loads(value)["after"] or {}).get("id") == key:
                return
        raise AssertionError(f"the row {key} has not come within {seconds:.0f} s")
    finally:
        consumer.close()


def wait_for_saved_position(directory: Path, seconds: float = 60) -> None:
    """Until the connector has saved that it is past its snapshot: else it takes a second one.

    Its rows would come before all changes that the log brought, and what changed while the
    connector was down would be in them alone (docs/how-to/snapshots-again.md).
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        saved = directory / "offsets"
        if saved.exists() and b'"lsn_commit"' in saved.read_bytes():
            return
        time.sleep(0.1)
    raise AssertionError(f"the connector has saved no position within {seconds:.0f} s")


def rows_in(database: psycopg.Connection[Any]) -> dict[int, tuple[Any, ...]]:
    """The rows that PostgreSQL itself has, by key."""
    columns = "*, doc::text AS doc_text"
    rows = database.execute(f"SELECT {columns} FROM customers".encode()).fetchall()
    return {row[0]: tuple(map(_as_spark_gives_it, (*row[:-2], row[-1]))) for row in rows}


def rows_of(read: DataFrame) -> dict[int, tuple[Any, ...]]:
    """Rows of a table, by key."""
    names = [field.split(" ")[0] for field in SCHEMA.split(", ")]
    found = [tuple(row) for row in read.select(*names).collect()]
    assert len({row[0] for row in found}) == len(found)
    return {row[0]: row for row in found}


def _as_spark_gives_it(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value
