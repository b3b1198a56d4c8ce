"""Debezium's change envelopes as rows for `apply_changes`.

- `changes`: `debezium_changes`, the arguments of `apply_changes` for its rows, and their positions.
- `envelopes`: messages of a topic; takes operation, source and columns from those in JSON; knows
  what Debezium sends in place of values that it does not have.
- `decoded`: takes the same from messages that a decoder made of Avro or Protobuf.
- `documents`: takes the same from MongoDB's envelopes, whose documents are texts.
- `values`: converts JSON text to a table's types.
"""

from __future__ import annotations

from deltaweave.changes.debezium.changes import FROM_DEBEZIUM, debezium_changes

__all__ = ["FROM_DEBEZIUM", "debezium_changes"]
