"""A Kafka topic as a stream of Spark, read by Kafka's own Python client.

Spark has a source of its own, `spark-sql-kafka-0-10`, which a cluster should use. Its jars must be
there when a session starts, and not every mirror of Maven Central has all of them; this one needs
none, and joins a session that runs. Its rows and its checkpoints' meaning are the same: a batch is
a range of offsets, which is read again as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

_SECONDS = 30

Offsets = dict[str, int]
"""By partition, the offset of the next message."""


class KafkaTopic(DataSource):
    """The source `kafka_topic`, with the options `bootstrap.servers` and `topic`.

    A stream begins with the oldest message that the topic has.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "kafka_topic"

    def schema(self) -> str:
        """Return the columns of a message."""
        return "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP"

    def streamReader(self, schema: StructType) -> TopicReader:  # noqa: N802
        """Return the reader of the topic's stream."""
        return TopicReader(self.options)


@dataclass
class OffsetRange(InputPartition):
    """Messages of a partition.

    Attributes:
        partition: Its number.
        start: The first offset.
        end: The offset after the last.
    """

    partition: int
    start: int
    end: int


class TopicReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Reads a topic by ranges of offsets.

    Args:
        options: Those of the source.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._bootstrap, self._topic = options["bootstrap.servers"], options["topic"]
        self._available_now: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Return the oldest offset of each partition."""
        return {partition: oldest for partition, (oldest, _) in self._watermarks().items()}

    def latestOffset(self, start: Any, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return where the topic ends now, or ended when a query of what is there began."""
        return self._available_now or self._ends()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the topic ends."""
        self._available_now = self._ends()

    def partitions(self, start: Any, end: Any) -> Sequence[OffsetRange]:
        """Return one input partition for each partition of the topic that has new messages."""
        ranges = [OffsetRange(int(each), start.get(each, 0), end[each]) for each in end]
        return [each for each in ranges if each.start < each.end]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the messages of a range of offsets.

        Raises:
            KafkaException: Kafka has them no more, or does not answer.
        """
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(self._topic, partition.partition, partition.start)])
            while True:
                message = _next(consumer)
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return
                if error is not None:
                    raise KafkaException(error)
                if message.offset() < partition.end:
                    yield _row(message)
                if message.offset() >= partition.end - 1:
                    return
        finally:
            consumer.close()

    def _watermarks(self) -> dict[str, tuple[int, int]]:
        consumer = self._consumer()
        try:
            known = consumer.list_topics(self._topic, timeout=_SECONDS).topics[self._topic]
            if known.error is not None:
                raise KafkaException(known.error)
            return {
                str(each): consumer.get_watermark_offsets(
                    TopicPartition(self._topic, each), timeout=_SECONDS
                )
                for each in known.partitions
            }
        finally:
            consumer.close()

    def _ends(self) -> Offsets:
        return {partition: end for partition, (_, end) in self._watermarks().items()}

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                # Needed by the client and not used: Spark's checkpoint knows what was read.
                "group.id": "deltaweave",
                "enable.auto.commit": False,
                # What was deleted from the topic must not be passed over.
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )


def _next(consumer: Consumer) -> Message:
    # One by one: `consume` waits until there are as many as it was asked for.
    message = consumer.poll(_SECONDS)
    if message is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return message


def _row(message: Message) -> tuple[Any, ...]:
    _, milliseconds = message.timestamp()
    at = datetime.fromtimestamp(milliseconds / 1000)
    return message.key(), message.value(), message.partition(), message.offset(), at
