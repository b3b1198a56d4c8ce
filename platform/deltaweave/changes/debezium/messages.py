"""The messages of a topic, and where each of them is."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructType

from deltaweave.delta.jvm import json_text
from deltaweave.identifiers import column

_SHOWN = 200


@dataclass(frozen=True)
class Messages:
    """The messages of a topic.

    Attributes:
        frame: One message in each row.
        value: Column of the envelope.
        offset: Column that orders messages, or None.
        key: Column of Kafka's key, or None.
    """

    frame: DataFrame
    value: str
    offset: str | None
    key: str | None = None

    @property
    def place(self) -> Column:
        """Where a message is, for errors."""
        named: list[tuple[str, str]] = [
            (name, name) for name in ("topic", "partition") if name in self.frame.columns
        ]
        named += [] if self.offset is None else [("offset", self.offset)]
        named += [("key", name) for name in self._key_names]
        parts = [
            F.concat(F.lit(f"{word} "), F.substring(column(name).cast("string"), 1, _SHOWN))
            for word, name in named
        ]
        return F.concat_ws(", ", *parts) if parts else F.lit("an unknown offset")

    @property
    def text(self) -> Column:
        """The envelope as text."""
        is_struct = isinstance(self.frame.schema[self.value].dataType, StructType)
        whole = json_text(column(self.value), with_nulls=True)
        return whole if is_struct else column(self.value).cast("string")

    @property
    def _key_names(self) -> list[str]:
        """The column of Kafka's key, if there is one that can be shown."""
        name, texts = self.key or "key", (StringType, BinaryType)
        return [
            f.name for f in self.frame.schema if f.name == name and isinstance(f.dataType, texts)
        ]
