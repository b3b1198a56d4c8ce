"""The benchmarks: deltaweave beside Delta's own MERGE and other table formats, on the same rows.

They run from a clone of the repository: `python -m benchmarks`. No wheel has them.

- `cli`: the commands of `python -m benchmarks`.
- `data`: the tables: generated once, kept in a directory, cloned for each run.
- `limits`: the largest merges that the engine must complete or refuse, and their memory.
- `merge`: cases of MERGE, how they are timed, and the report.
- `merge_on_read`: reading, ingesting and rematerializing merge-on-read tables.
- `peers`: Apache Iceberg and Apache Hudi, each in its own environment, and delta-rs.
"""
