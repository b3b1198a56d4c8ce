"""Change data capture: applies events to Delta tables even if they are late, repeated or unordered.

- `apply`: `apply_changes`, which applies a batch of events to a table.
- `events`: reads source rows as events with a key, an operation, a sequence and values.
- `unusable_events`: what is wrong with events that cannot be applied.
- `rescue`: puts such events into a table of their own.
- `hashes`: hashes of values, which tell events with the same sequence apart.
- `sequence_types`: the types of sequences, and missing sequences.
- `epochs`: positions in a log that come with an epoch and a time.
- `table_columns`: the columns of a table, and what the tables beside it call them.
- `stored_events`: events as the tables beside store them, and read back when columns have changed.
- `conversions`: values as values of another type.
- `collected_values`: collects values and turns them back into constants.
- `options`: the arguments that describe events, and their checks.
- `debezium`: turns Debezium's envelopes into rows for `apply_changes`.
- `side_table`: small tables in a table's directory that remember recent events.
- `side_state`: what they remember after a RESTORE or for a clone.
- `delivery`: a batch as a caller hands it over, which may come again.
- `lineage`: which remembered events a version of a table has, by its commits.
- `commit_lines`: the commits that a version of a table consists of.
- `current`: tables of current rows (SCD type 1).
- `history`: tables of histories (SCD type 2).
- `merge_on_read`: tables whose changes are appended now and merged later.
"""
