"""Debezium's PostgreSQL connector, run by Kafka Connect in one process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests

from assets.java_program import KAFKA, class_path, free_ports, running
from tests.end_to_end.postgres import USER

PREFIX = "bank"
"""Topics are named by it, the schema and the table."""

_PACKAGES = [
    f"org.apache.kafka:connect-runtime:{KAFKA}",
    f"org.apache.kafka:connect-json:{KAFKA}",
    "io.debezium:debezium-connector-postgres:3.7.0.Final",
]
_JSON = "org.apache.kafka.connect.json.JsonConverter"


@contextmanager
def running_connector(
    directory: Path, bootstrap: str, postgres: int, table: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start Kafka Connect with the connector, and end it afterwards.

    Args:
        directory: Where it notes how far it has read; one that is started there again goes on.
        bootstrap: Kafka's address.
        postgres: PostgreSQL's port.
        table: The table to capture, with its schema.
    """
    [port] = free_ports(1)
    worker = {
        "bootstrap.servers": bootstrap,
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": _JSON,
        "value.converter": _JSON,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": directory / "offsets",
        "offset.flush.interval.ms": 500,
        "plugin.discovery": "only_scan",  # the jars lie on the class path, in no plugin folders
    }
    connector = {
        "name": PREFIX,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": postgres,
        "database.user": USER,
        "database.dbname": USER,
        "topic.prefix": PREFIX,
        "table.include.list": table,
        "decimal.handling.mode": "string",  # as `debezium_changes` asks for
        "skipped.operations": "none",  # truncates are skipped otherwise
        "poll.interval.ms": 50,
    }
    files = [
        _properties(directory / "worker.properties", worker),
        _properties(directory / "connector.properties", connector),
    ]
    with running(
        "org.apache.kafka.connect.cli.ConnectStandalone",
        files,
        class_path(_PACKAGES),
        log=directory / "connect.log",
        answers=lambda: _runs(port),
    ) as process:
        yield process


def _properties(file: Path, settings: Mapping[str, object]) -> str:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


def _runs(port: int) -> bool:
    """Whether the connector's task runs."""
    try:
        answer = requests.get(f"http://127.0.0.1:{port}/connectors/{PREFIX}/status", timeout=5)
    except requests.RequestException:
        return False
    if not answer.ok:  # as long as Connect starts
        return False
    tasks = answer.json()["tasks"]
    assert not any(task["state"] == "FAILED" for task in tasks), tasks
    return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)
