"""Messages that Debezium's connectors sent, and the rows that their databases had in the end.

`make record-debezium` records both; README.md says with which releases they were recorded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent

_SCHEMA = '{"schema":%s,"payload":%s}'


@dataclass(frozen=True)
class Message:
    """A message of a topic, as Kafka has it.

    Attributes:
        topic: Its topic.
        partition: Its partition of the topic.
        offset: Its place in the partition.
        timestamp: When it was sent, in milliseconds since 1970.
        key: Its key; None for a table without one.
        value: Its value; None for a tombstone.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None


def recordings(database: str) -> list[str]:
    """Return the names of a database's recordings, such as `postgresql-default`."""
    return sorted(file.stem for file in FOLDER.glob(f"{database}-*.jsonl"))


def messages(recording: str, table: str | None = None) -> list[Message]:
    """Return a recording's messages: topic by topic, each in the order in which they came.

    Args:
        recording: Its name.
        table: Only messages of this table.
    """
    lines = (FOLDER / f"{recording}.jsonl").read_text().splitlines()
    schemas: list[str] = []
    found = []
    for line in map(json.loads, lines):
        if "schema" in line:
            schemas.append(line["schema"])
            continue
        for part in ("key", "value"):
            if (number := line.pop(f"{part}_schema", None)) is not None:
                line[part] = _SCHEMA % (schemas[number], line[part])
        found.append(Message(**line))
    return [each for each in found if table in (None, each.topic.rsplit(".", 1)[-1])]


def save(recording: str, kept: list[Message]) -> None:
    """Write a recording; a schema that several messages carry is written once."""
    numbers: dict[str, int] = {}
    lines: list[dict[str, object]] = []
    for message in kept:
        line = dict(vars(message))
        for part in ("key", "value"):
            text = line[part]
            split = None if text is None else _split_schema(text)
            if split is None:
                continue
            schema, line[part] = split
            if schema not in numbers:
                numbers[schema] = len(numbers)
                lines.append({"schema": schema})
            line[f"{part}_schema"] = numbers[schema]
        lines.append(line)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (FOLDER / f"{recording}.jsonl").write_text(text)
    assert messages(recording) == kept


def _split_schema(text: str) -> tuple[str, str] | None:
    """Return the texts of the schema and of the payload, if a message has a schema."""
    start = '{"schema":'
    if not text.startswith(start):
        return None
    _, end = json.JSONDecoder().raw_decode(text, len(start))
    schema, rest = text[len(start) : end], text[end:]
    assert rest.startswith(',"payload":'), rest[:40]
    return schema, rest[len(',"payload":') : -1]
