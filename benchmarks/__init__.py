"""The benchmarks: deltaweave beside Delta's own MERGE and other table formats, on the same rows.

They run from a clone of the repository: `python -m benchmarks`. No wheel has them.

- `commands`: the commands.
- `report`: what each benchmark reports: a table, JSON, a chart.
- `data`: the tables: generated once, kept in a directory, cloned for each run.
- `merge`: cases of MERGE, and how they are timed.
- `peers`: Apache Iceberg and Apache Hudi, each in its own environment, and delta-rs.
- `merge_on_read`: reading, ingesting and rematerializing merge-on-read tables.
- `limits`: the largest merges that the engine must complete or refuse, and their memory.
"""
