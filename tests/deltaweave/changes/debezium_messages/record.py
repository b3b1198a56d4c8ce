"""Records what Debezium's connectors send, and their databases' rows: `make record-debezium`."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka import Message as KafkaMessage

from assets.cdc_demo.broker import running_broker
from tests.deltaweave.changes.debezium_messages import FOLDER, Message, save
from tests.end_to_end import mariadb
from tests.end_to_end.connector import (
    POSTGRES_PACKAGE,
    Settings,
    postgres_connector,
    running_connectors,
)
from tests.end_to_end.mariadb import MariaDB, running_mariadb
from tests.end_to_end.postgres import connect, running_postgres

MARIADB_PACKAGE = "io.debezium:debezium-connector-mariadb:3.5.0.Final"

WITH_SCHEMAS = {"key.converter.schemas.enable": "true", "value.converter.schemas.enable": "true"}
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
FLATTENED = {
    "transforms": "flatten",
    "transforms.flatten.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.flatten.delete.tombstone.handling.mode": "rewrite",
}

# The settings of each recording. Beside its schema or without it, in every way in which Debezium
# writes times, numbers and bytes.
SHARED_MODES: Mapping[str, Settings] = {
    "default": WITH_SCHEMAS,
    "strings": {"decimal.handling.mode": "string"},
    "connect": {
        **WITH_SCHEMAS,
        "time.precision.mode": "connect",
        "decimal.handling.mode": "double",
        "binary.handling.mode": "base64",
    },
    "isostring": {
        "time.precision.mode": "isostring",
        "decimal.handling.mode": "string",
        "binary.handling.mode": "hex",
    },
    "microseconds": {
        **WITH_SCHEMAS,
        "time.precision.mode": "microseconds",
        "decimal.handling.mode": "string",
        "binary.handling.mode": "base64-url-safe",
    },
    "nanoseconds": {
        **WITH_SCHEMAS,
        "time.precision.mode": "nanoseconds",
        "decimal.handling.mode": "string",
        "binary.handling.mode": "hex",
    },
    "flattened": {
        **FLATTENED,
        "transforms.flatten.add.fields": "op,source.ts_ms,ts_ms",
        "decimal.handling.mode": "string",
    },
}
POSTGRES_MODES: Mapping[str, Settings] = {
    "default": {},
    "strings": {},
    "connect": {"hstore.handling.mode": "map", "interval.handling.mode": "string"},
    "isostring": {
        "hstore.handling.mode": "map",
        "interval.handling.mode": "string",
        "unavailable.value.placeholder": "unsent",
    },
    "microseconds": {"provide.transaction.metadata": "true"},
    "nanoseconds": {},
    "flattened": {"transforms.flatten.add.fields": "op,source.lsn,source.ts_ms,ts_ms"},
}
MARIADB_MODES: Mapping[str, Settings] = {
    "default": {},
    "strings": {"bigint.unsigned.handling.mode": "precise"},
    "connect": {},
    "isostring": {},
    "microseconds": {"provide.transaction.metadata": "true"},
    "nanoseconds": {},
    "flattened": {"transforms.flatten.add.fields": "op,source.file,source.pos,source.row"},
}


def main() -> None:
    """Record the messages of each database."""
    with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder) / "kafka") as kafka:
        record_postgres(Path(folder), kafka)
        record_mariadb(Path(folder), kafka)


def record_postgres(folder: Path, kafka: str) -> None:
    """Record PostgreSQL's connector in each mode, over the same changes."""
    with running_postgres() as port, connect(port) as database:
        database.execute("SET timezone = 'UTC'; SET extra_float_digits = 1")
        for statement in statements_of("postgresql.snapshot.sql"):
            database.execute(statement.encode())
        connectors = [
            {
                **postgres_connector(port, r"public\..*", prefix=f"postgresql_{mode}"),
                **_converters(),
                **SHARED_MODES[mode],
                **settings,
            }
            for mode, settings in POSTGRES_MODES.items()
        ]
        with connecting(folder / "postgresql", kafka, POSTGRES_PACKAGE, connectors) as reached:
            reached(1)
            for statement in statements_of("postgresql.stream.sql"):
                database.execute(statement.encode())
            reached(2)
        save_messages(kafka, connectors)
        save_rows("postgresql", postgres_rows(database))


def postgres_rows(database: psycopg.Connection[Any]) -> dict[str, list[str]]:
    """Return the rows of each table as JSON."""
    found = database.execute(
        "SELECT table_name, column_name, udt_name FROM information_schema.columns "
        "WHERE table_schema = 'public' AND table_name <> 'marks' ORDER BY ordinal_position"
    ).fetchall()
    rows = {}
    for table, columns in by_table(found).items():
        values = ", ".join(_postgres_value(f'"{name}"', of) for name, of in columns)
        names = ", ".join(f'"{name}"' for name, _ in columns)
        query = f"SELECT row_to_json(t)::text FROM (SELECT {values} FROM {table}) AS t ({names})"
        rows[table] = [row[0] for row in database.execute(query.encode())]
    return rows


def _postgres_value(name: str, of: str) -> str:
    """Return the SQL of a column's value for JSON."""
    base64 = "replace(encode({}, 'base64'), E'\\n', '')"
    if of == "bytea":
        return base64.format(name)
    if of == "_bytea":
        return f"(SELECT array_agg({base64.format('b')}) FROM unnest({name}) AS b)"
    if of == "bit":
        boolean = f"CASE WHEN length({name}) = 1 THEN to_jsonb({name} = B'1')"
        return f"{boolean} ELSE to_jsonb({name}::text) END"
    # Otherwise they are nested, and not the text that they are in the database.
    if of in ("json", "jsonb"):
        return f"{name}::text"
    if of in ("_jsonb", "_hstore"):
        return f"{name}::text[]"
    return name + {"money": "::numeric", "oid": "::bigint"}.get(of, "")


def record_mariadb(folder: Path, kafka: str) -> None:
    """Record MariaDB's connector in each mode, over the same changes; then over a new log."""
    with running_mariadb(binlog_before="bin.999998") as database:
        database.execute((FOLDER / "mariadb.snapshot.sql").read_text())
        connectors = [
            mariadb_connector(database, kafka, mode, number, {**SHARED_MODES[mode], **settings})
            for number, (mode, settings) in enumerate(MARIADB_MODES.items())
        ]
        other = mariadb_connector(database, kafka, "other_log", 50, SHARED_MODES["strings"])
        other["table.include.list"] = r"bank\.(across_logs|marks)"
        other["snapshot.mode"] = "when_needed"
        with (
            connecting(folder / "mariadb", kafka, MARIADB_PACKAGE, connectors) as reached,
            connecting(folder / "other", kafka, MARIADB_PACKAGE, [other]) as other_reached,
        ):
            reached(1)
            other_reached(1)
            database.execute((FOLDER / "mariadb.stream.sql").read_text())
            reached(2)
            other_reached(2)
        save_messages(kafka, connectors)
        rows = mariadb_rows(database)
        database.execute((FOLDER / "mariadb.other_log.sql").read_text())
        with connecting(folder / "other", kafka, MARIADB_PACKAGE, [other]) as other_reached:
            other_reached(3)
            database.execute((FOLDER / "mariadb.other_log_stream.sql").read_text())
            other_reached(4)
        save_messages(kafka, [other])
        rows["across_logs"] = mariadb_rows(database)["across_logs"]
        save_rows("mariadb", rows)


def mariadb_connector(
    database: MariaDB, kafka: str, mode: str, number: int, settings: Settings
) -> dict[str, object]:
    """Return the settings of a connector that captures all tables."""
    prefix = f"mariadb_{mode}"
    return {
        "name": prefix,
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.hostname": "127.0.0.1",
        "database.port": database.port,
        "database.user": mariadb.USER,
        "database.password": mariadb.PASSWORD,
        "database.server.id": 100 + number,
        "database.include.list": mariadb.DATABASE,
        "database.ssl.mode": "disable",
        # Otherwise a snapshot stops at a YEAR of 0.
        "driver.yearIsDateType": "false",
        "schema.history.internal.kafka.bootstrap.servers": kafka,
        "schema.history.internal.kafka.topic": f"history_of_{prefix}",
        "topic.prefix": prefix,
        "skipped.operations": "none",
        "poll.interval.ms": 50,
        **_converters(),
        **settings,
    }


def mariadb_rows(database: MariaDB) -> dict[str, list[str]]:
    """Return the rows of each table as JSON."""
    found = database.execute(
        "SELECT table_name, column_name, if(data_type = 'bit', column_type, data_type) "
        f"FROM information_schema.columns WHERE table_schema = '{mariadb.DATABASE}' "
        "AND table_name <> 'marks' ORDER BY ordinal_position;"
    )
    rows = {}
    for table, columns in by_table([line.split("\t") for line in found.splitlines()]).items():
        pairs = ", ".join(f"'{name}', {_mariadb_value(f'`{name}`', of)}" for name, of in columns)
        rows[table] = database.execute(f"SELECT JSON_OBJECT({pairs}) FROM {table};").splitlines()
    return rows


def _mariadb_value(name: str, of: str) -> str:
    """Return the SQL of a column's value for JSON."""
    if of.endswith(("blob", "binary")):
        return f"replace(to_base64({name}), '\\n', '')"
    if of == "bit(1)":
        return f"json_compact(elt({name} + 1, 'false', 'true'))"
    if of.startswith("bit"):
        return f"bin({name})"
    if of in ("point", "geometry"):
        return f"ST_AsText({name})"
    if of == "timestamp":
        return f"concat({name}, 'Z')"
    if of in ("date", "datetime", "time", "longtext", "uuid"):
        return f"CAST({name} AS CHAR)"
    return name


def _converters() -> Settings:
    """Return the settings without which a connector ignores whether it shall send schemas."""
    return {
        "key.converter": JSON_CONVERTER,
        "value.converter": JSON_CONVERTER,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }


def statements_of(file: str) -> Iterator[str]:
    """Yield a file's statements, each of which ends a line; a body in `$$` is a part of one."""
    statement = ""
    for line in (FOLDER / file).read_text().splitlines(keepends=True):
        statement += line
        if line.endswith(";\n") and statement.count("$$") % 2 == 0:
            yield statement
            statement = ""
    assert not statement.strip(), statement


def by_table(columns: Sequence[Sequence[str]]) -> dict[str, list[tuple[str, str]]]:
    """Return each table's columns, with their types."""
    tables: dict[str, list[tuple[str, str]]] = {}
    for table, name, of in columns:
        tables.setdefault(table, []).append((name, of))
    return tables


@contextmanager
def connecting(
    folder: Path, kafka: str, package: str, connectors: Sequence[Settings]
) -> Iterator[Callable[[int], None]]:
    """Run connectors; what is yielded waits until each has sent the row of `marks` with a number.

    When the context is left, Kafka has all messages that came before.
    """
    folder.mkdir(exist_ok=True)

    def wait_for(mark: int) -> None:
        deadline = time.monotonic() + 120
        for settings in connectors:
            while not any(_is_mark(each, mark) for each in messages_in(kafka, settings)):
                log = (folder / "connect.log").read_text()
                assert "Task is being killed" not in log, log[-9000:]
                assert time.monotonic() < deadline, log[-9000:]
                time.sleep(0.5)

    with running_connectors(folder, kafka, package, connectors):
        yield wait_for


def _is_mark(message: Message, number: int) -> bool:
    if not message.topic.endswith(".marks"):
        return False
    key: dict[str, Any] = json.loads(message.key or "{}")
    return bool(key.get("payload", key)["id"] == number)


def save_messages(kafka: str, connectors: Sequence[Settings]) -> None:
    """Write each connector's messages, but not those of `marks`."""
    for settings in connectors:
        kept = [m for m in messages_in(kafka, settings) if not m.topic.endswith(".marks")]
        save(str(settings["name"]).replace("_", "-", 1), kept)


def save_rows(database: str, tables: Mapping[str, list[str]]) -> None:
    """Write each table's rows, in an order that does not depend on the database."""
    for table, rows in tables.items():
        (FOLDER / f"{database}.{table}.rows.jsonl").write_text("\n".join(sorted(rows)) + "\n")


def messages_in(kafka: str, settings: Settings) -> list[Message]:
    """Return all messages of a connector's topics: topic by topic, each by its offset."""
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": "record", "enable.partition.eof": True}
    )
    prefix = f"{settings['topic.prefix']}"
    try:
        topics = consumer.list_topics(timeout=30).topics
        mine = sorted(each for each in topics if each == prefix or each.startswith(f"{prefix}."))
        consumer.assign([TopicPartition(topic, 0, 0) for topic in mine])
        found: list[Message] = []
        open_topics = set(mine)
        while open_topics:
            received = consumer.poll(30)
            assert received is not None, f"Kafka does not answer for {open_topics}"
            if error := received.error():
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_topics.discard(received.topic())
            else:
                found.append(_message(received))
        return sorted(found, key=lambda each: (each.topic, each.partition, each.offset))
    finally:
        consumer.close()


def _message(received: KafkaMessage) -> Message:
    key, value = received.key(), received.value()
    topic, partition, offset = received.topic(), received.partition(), received.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return Message(
        topic,
        partition,
        offset,
        received.timestamp()[1],
        None if key is None else key.decode(),
        None if value is None else value.decode(),
    )


if __name__ == "__main__":
    main()
