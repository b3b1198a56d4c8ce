"""Debezium's connectors, run by Kafka Connect in one process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests

from assets.java_program import KAFKA, class_path, free_ports, running
from tests.end_to_end.postgres import USER

PREFIX = "bank"
"""Topics are named by it, the schema and the table."""

POSTGRES_PACKAGE = "io.debezium:debezium-connector-postgres:3.7.0.Final"

Settings = Mapping[str, object]

_CONNECT = [f"org.apache.kafka:connect-runtime:{KAFKA}", f"org.apache.kafka:connect-json:{KAFKA}"]
_JSON = "org.apache.kafka.connect.json.JsonConverter"


def postgres_connector(port: int, tables: str, *, prefix: str = PREFIX) -> dict[str, object]:
    """Return the settings of a connector that captures tables of a PostgreSQL on this machine.

    Args:
        port: PostgreSQL's port.
        tables: The tables to capture, with their schemas, separated by commas.
        prefix: The first part of the topics' names, and the connector's name.
    """
    return {
        "name": prefix,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "slot.name": prefix,
        "publication.name": prefix,
        "database.hostname": "127.0.0.1",
        "database.port": port,
        "database.user": USER,
        "database.dbname": USER,
        "topic.prefix": prefix,
        "table.include.list": tables,
        "skipped.operations": "none",  # truncates are skipped otherwise
        "poll.interval.ms": 50,
    }


@contextmanager
def running_connectors(
    directory: Path, bootstrap: str, package: str, connectors: Sequence[Settings]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start Kafka Connect with connectors, and end it afterwards.

    Messages are JSON without Connect's schemas, unless a connector's settings differ.

    Args:
        directory: Where it stores its offsets; if it is started there again, it continues.
        bootstrap: Kafka's address.
        package: The connectors' package, as `group:name:version`.
        connectors: The settings of each connector.
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
    names = [str(settings["name"]) for settings in connectors]
    files = [_properties(directory / "worker.properties", worker)]
    files += [
        _properties(directory / f"{name}.properties", settings)
        for name, settings in zip(names, connectors, strict=True)
    ]
    with running(
        "org.apache.kafka.connect.cli.ConnectStandalone",
        files,
        class_path([*_CONNECT, package]),
        log=directory / "connect.log",
        answers=lambda: all(_runs(port, name) for name in names),
    ) as process:
        yield process


def _properties(file: Path, settings: Settings) -> str:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


def _runs(port: int, name: str) -> bool:
    """Return whether the connector's task runs."""
    try:
        answer = requests.get(f"http://127.0.0.1:{port}/connectors/{name}/status", timeout=5)
    except requests.RequestException:
        return False
    if not answer.ok:  # as long as Connect starts
        return False
    tasks = answer.json()["tasks"]
    assert not any(task["state"] == "FAILED" for task in tasks), tasks
    return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)
