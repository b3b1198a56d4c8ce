"""Change data capture: applies events to Delta tables even if they are late, repeated or unordered.

- `apply`: `apply_changes`, which applies a batch of events to a table.
- `current`, `history`: tables of current rows (SCD type 1), and of histories (SCD type 2).
- `merge_on_read`: tables whose changes are appended now and merged later.
- `side_tables`: what a table remembers of deletes and events, in tables beside it.
- `restores`: which of that a version of the table has, after RESTORE and CLONE.
- `delivery`: a batch as a caller hands it over, and the table of its unusable events.
- `debezium`: turns Debezium's envelopes into rows for `apply_changes`.
- `options`: the options of change data capture, each declared once, and their checks.
- `events`: reads source rows as events with a key, an operation, a sequence and values.
- `epochs`: sequences by which changes of another log of the database are noticed.
- `table_columns`, `conversions`: a table's columns; values as another type, constant or hash.
"""
