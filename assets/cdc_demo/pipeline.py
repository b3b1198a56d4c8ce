"""The demo's steps: events into Kafka, from Kafka into a changeset, and the table read and merged.

Each is a function of plain values, for a command, a test or an asset to call.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import tenacity
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import deltaweave
from assets.cdc_demo import customers
from assets.cdc_demo.broker import create_topic_if_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltaweave import MergeOnReadTable

TOPIC = "shop.public.customers"

Row = tuple[int, str, str, Decimal, str]
Rows = set[Row]
"""Rows of customers, which a demo has few enough of to hold."""


class LostError(RuntimeError):
    """A topic holds fewer events than it was given."""


@dataclass(frozen=True)
class Delivered:
    """What was brought into Kafka.

    Attributes:
        rounds: The number of the newest round of changes.
        events: How many events were delivered now.
        repeated: How many of them had been delivered before.
    """

    rounds: int
    events: int
    repeated: int


def deliver_next_round(bootstrap: str, size: int = customers.SIZE) -> Delivered:
    """Deliver the newest round once more, as connectors do when they start again, and the next.

    So a round that was delivered in part, by a demo that was stopped, becomes whole.

    Args:
        bootstrap: Kafka's address.
        size: How many customers the database has at first.

    Raises:
        LostError: Kafka has not taken the events.
    """
    create_topic_if_missing(bootstrap, TOPIC)
    newest = newest_round(bootstrap)
    shop = customers.Shop(size)
    for number in range(1, newest):
        shop.play(number)
    repeated = customers.delivered(shop.play(newest), newest) if newest else []
    new = customers.delivered(shop.play(newest + 1), newest + 1)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for event in [*repeated, *new]:
        producer.produce(TOPIC, value=event)
    if left := producer.flush(60):
        raise LostError(f"Kafka has not taken {left} events within a minute.")
    return Delivered(newest + 1, len(repeated) + len(new), len(repeated))


def newest_round(bootstrap: str) -> int:
    """Return the round of the newest event in the topic; 0 where there is none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "newest-round"})
    try:
        _, end = _offsets(consumer)
        if end == 0:
            return 0
        consumer.assign([TopicPartition(TOPIC, 0, end - 1)])
        newest = consumer.poll(30)
        if newest is None or (value := newest.value()) is None:
            raise LostError(f"Kafka does not give the newest event of {TOPIC}.")
        return customers.round_of(value.decode())
    finally:
        consumer.close()


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(KafkaException),
    stop=tenacity.stop_after_delay(60),
    wait=tenacity.wait_fixed(0.5),
    reraise=True,
)
def _offsets(consumer: Consumer) -> tuple[int, int]:
    """Return the topic's first offset and the one after its last event.

    A broker that was just started refuses to say while it chooses the leaders of its topics.
    """
    first, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)
    return first, end


def messages_of(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Return a topic's messages as a stream, with their offsets."""
    from assets.cdc_demo.kafka_source import KafkaTopic

    spark.dataSource.register(KafkaTopic)
    options = {"bootstrap.servers": bootstrap, "topic": topic}
    return spark.readStream.format(KafkaTopic.name()).options(**options).load()


def events_of(messages: DataFrame) -> DataFrame:
    """Convert Debezium's messages to rows of the table."""
    return deltaweave.debezium_changes(messages, schema=customers.SCHEMA, connector="postgresql")


def customers_table(spark: SparkSession, lake: Path) -> MergeOnReadTable:
    """Return the demo's table: a base and the changes to it."""
    path = str(lake / "customers")
    return deltaweave.MergeOnReadTable(spark, path, keys=customers.KEYS, **deltaweave.FROM_DEBEZIUM)


def ingest(table: MergeOnReadTable, stream: DataFrame, lake: Path) -> None:
    """Append what the stream has brought since the last time, exactly once."""
    query = table.ingest(stream, name="customers", checkpoint=str(lake / "checkpoint"))
    query.awaitTermination()


def rows_of(read: DataFrame) -> Rows:
    """Return the rows that a reader of the table sees."""
    return {
        (row.id, row.name, row.city, row.spent, row.story)
        for row in read.select("id", "name", "city", "spent", "story").collect()
    }


def rows_in_the_database(rounds: int, size: int = customers.SIZE) -> Rows:
    """Return the rows that the table must have, computed from the events' database."""
    return {
        (row.id, row.name, row.city, Decimal(row.spent).scaleb(-2), row.story)
        for row in customers.rows_after(rounds, size).values()
    }
