"""Debezium's change envelopes as rows for `apply_changes`.

- `changes`: `debezium_changes`, and the arguments of `apply_changes` for its rows.
- `messages`: the messages of a topic, and where each of them is.
- `envelopes`: takes operation, source and columns from JSON or from decoded rows.
- `documents`: takes the same from MongoDB's envelopes, whose documents are texts.
- `placeholders`: recognizes what Debezium sends in place of values that it does not have.
- `values`: converts JSON text to a table's types.
- `positions`: the position of an event in its database's log.
"""

from __future__ import annotations

from deltaweave.changes.debezium.changes import FROM_DEBEZIUM, debezium_changes

__all__ = ["FROM_DEBEZIUM", "debezium_changes"]
