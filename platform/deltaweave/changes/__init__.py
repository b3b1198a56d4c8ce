"""Change data capture: applies events to Delta tables even if they are late, repeated or unordered.

- `apply`: `apply_changes`, which applies a batch of events to a table.
- `options`: the options of change data capture, each declared once, and their checks.
- `debezium`: turns Debezium's envelopes into rows for `apply_changes`.
- `events`: reads source rows as events with a key, an operation, a sequence and values.
- `delivery`: a batch as a caller hands it over, and the table of its unusable events.

Each side applies events in its own way, and knows no other side's inside:

- `current`: tables of current rows (SCD type 1).
- `history`: tables of histories (SCD type 2).
- `merge_on_read`: tables whose changes are appended now and merged later.

They remember events beside their table:

- `tombstones`: the deletes of a table of current rows.
- `side_table`: small tables in a table's directory, also after a RESTORE or for a clone.
- `lineage`: which remembered events a version of a table has, by its commits.
- `commit_lines`: the commits that a version of a table consists of.
- `stored_events`: events as the tables beside store them, and read back when columns have changed.
- `table_columns`: the columns of a table, and what the tables beside it call them.

And values and positions:

- `conversions`: values as another type, as constants, and as hashes.
- `epochs`: positions in a log that come with an epoch and a time.
"""
