"""A Kafka broker of one process, on the loopback interface, for the demo and the tests."""

from __future__ import annotations

import logging
import socket
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from assets.java_program import KAFKA, class_path, free_ports, run_to_its_end, running

_PACKAGES = [f"org.apache.kafka:kafka_2.13:{KAFKA}"]

_silent = logging.getLogger(f"{__name__}.client")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


@contextmanager
def running_broker(directory: Path) -> Iterator[str]:
    """Start a broker, and end it when the context is left.

    Args:
        directory: Where it keeps its topics, and its log `kafka.log`; a broker that is started
            there again has the topics that there were.

    Returns:
        Its address, for `bootstrap.servers`.

    Raises:
        JavaProgramError: It could not be fetched or does not start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    jars = class_path(_PACKAGES)
    port, controller_port = free_ports(2)
    settings = directory / "server.properties"
    settings.write_text(_settings(directory / "topics", port, controller_port))
    if not (directory / "topics" / "meta.properties").exists():
        # Kafka's tool takes an id that begins with "-" for an option.
        cluster = urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        run_to_its_end(
            "kafka.tools.StorageTool", ["format", "-t", cluster, "-c", str(settings)], jars
        )
    with running(
        "kafka.Kafka",
        [str(settings)],
        jars,
        log=directory / "kafka.log",
        answers=lambda: _answers(port),
    ):
        yield f"127.0.0.1:{port}"


def create_topic_if_missing(bootstrap: str, topic: str) -> None:
    """Make a topic of one partition, in which events keep the order in which they came."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if topic not in admin.list_topics(timeout=30).topics:
        [made] = admin.create_topics([NewTopic(topic, num_partitions=1)]).values()
        made.result()


def _answers(port: int) -> bool:
    # Asked first, since Kafka's client writes of each connection that is refused.
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}, logger=_silent)
    try:
        return bool(client.list_topics(timeout=5).brokers)
    except KafkaException:
        return False


def _settings(topics: Path, port: int, controller_port: int) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": topics,
        # The events of a table are needed as long as the table is.
        "log.retention.ms": -1,
        # There is one broker to hold a copy of anything.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "offsets.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
