"""Measurements of merge-on-read tables.

- `tables`: the tables, and the changes to them.
- `reads`: times each method to read a table and each strategy to rematerialize it.
- `ingestion`: how many changes a minute a table takes, and how fresh it stays.
- `decay`: how reads slow down as changes accumulate.
- `read_peers`: the same upsert and reads on tables of other formats.
"""
